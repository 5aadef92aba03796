//! Quantized matrices in MLX's packed format.

use std::borrow::Cow;
use std::ffi::CStr;

use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::ops::{multiply, zeros_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use crate::array;
use crate::error::{Error, Result};
use crate::mlx_sys::{self, PackedMatrix};
use crate::quantization::dequantize::Dequantizer;
use crate::quantization::{InputChange, Mode, QuantScheme};

/// The number of values dequantized at a time, which bounds the temporary memory.
const CHUNK: usize = 4 << 20;

/// A matrix `[output, input]`, or a stack of them.
#[derive(Clone)]
pub struct QuantizedMatrix {
    scheme: QuantScheme,
    /// `[..., output, words]` of u32.
    weight: Array,
    /// `[..., output, groups]`
    scales: Array,
    /// Same shape as the scales.
    biases: Option<Array>,
    /// A factor of each row, `[..., output, 1]` in f32. Products are multiplied by it.
    row_scales: Option<Array>,
    /// The change of inputs before the product. Matrices of a stack share it.
    inputs: Option<InputChange>,
}

impl QuantizedMatrix {
    /// Creates a matrix from its arrays. The caller has checked their shapes.
    pub fn new(scheme: QuantScheme, weight: Array, scales: Array, biases: Option<Array>) -> Self {
        Self { scheme, weight, scales, biases, row_scales: None, inputs: None }
    }

    /// Adds a factor of each row, `[..., output, 1]` in f32.
    #[must_use]
    pub fn with_row_scales(self, row_scales: Option<Array>) -> Self {
        Self { row_scales, ..self }
    }

    /// Adds a change of inputs before the product.
    #[must_use]
    pub(crate) fn with_input_change(self, inputs: Option<InputChange>) -> Self {
        Self { inputs, ..self }
    }

    /// Quantizes floats `[..., output, input]` with MLX's function. Rows must be a multiple of the group size.
    pub fn quantize(matrix: &Array, scheme: QuantScheme) -> Result<Self> {
        let (group, bits) = (scheme.group_size as i32, scheme.bits as i32);
        let mut parts = mlx_sys::quantize(matrix, group, bits, name_of(scheme.mode))?.into_iter();
        match (parts.next(), parts.next()) {
            (Some(weight), Some(scales)) => Ok(Self::new(scheme, weight, scales, parts.next())),
            _ => Err(Error::Mlx(format!("quantize returned no scales for {scheme}"))),
        }
    }

    /// Returns the bytes of the words, the scales and, in affine mode, the biases, in the file format. It must have no row scales.
    pub fn to_bytes(&self) -> Result<Vec<Vec<u8>>> {
        self.arrays().map(|array| Ok(array::to_bytes(array)?.1)).collect()
    }

    /// Returns true if `other` has the same scheme, so that the two can be stacked.
    pub fn has_same_scheme(&self, other: &Self) -> bool {
        let have_same_inputs = match (&self.inputs, &other.inputs) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        self.scheme == other.scheme
            && self.row_scales.is_some() == other.row_scales.is_some()
            && have_same_inputs
    }

    /// Bytes in memory, without the change of inputs.
    pub fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// Multiplies `[..., input]` by the matrix to `[..., output]`.
    pub fn multiply(&self, input: &Array) -> Result<Array> {
        let changed = self.changed(input)?;
        let product = mlx_sys::quantized_matmul(&changed, self.operand())?;
        match &self.row_scales {
            None => self.narrowed(product, input),
            Some(scales) => scaled(&product, scales),
        }
    }

    /// Multiplies each row `[.., 1, input]` by its matrix of the stack, selected by `chosen`. Returns `[.., 1, output]`.
    pub fn gather_multiply(&self, input: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        let changed = self.changed(input)?;
        let product = mlx_sys::gather_quantized_matmul(&changed, self.operand(), chosen, sorted)?;
        match &self.row_scales {
            None => self.narrowed(product, input),
            Some(scales) => scaled(&product, &scales.take_axis(chosen, 0)?),
        }
    }

    /// Returns inputs as the packed matrix needs them.
    fn changed<'a>(&self, input: &'a Array) -> Result<Cow<'a, Array>> {
        Ok(match &self.inputs {
            None => Cow::Borrowed(input),
            Some(change) => Cow::Owned(change.apply(input)?),
        })
    }

    /// Returns rows of the packed matrix for unchanged inputs.
    fn restored(&self, rows: &Array) -> Result<Array> {
        self.inputs.as_ref().map_or(Ok(rows.clone()), |change| change.restore(rows))
    }

    /// Returns a product in the type of its input. MLX multiplies in the type of the scales if that is wider.
    fn narrowed(&self, product: Array, input: &Array) -> Result<Array> {
        let is_wider = self.scheme.has_biases() && self.scales.dtype() == Dtype::Float32;
        Ok(if is_wider { product.as_dtype(input.dtype())? } else { product })
    }

    /// Returns the dequantized rows with these indices, `[R, input]`, of a single matrix.
    pub fn rows(&self, indices: &Array, dtype: Dtype) -> Result<Array> {
        let mut rows = self.select_rows(indices)?;
        if self.scheme.has_biases() {
            // MLX rounds to the type of the scales.
            rows.scales = rows.scales.as_dtype(dtype)?;
            rows.biases = rows.biases.map(|biases| biases.as_dtype(dtype)).transpose()?;
        }
        rows.dequantize_on_device(dtype)
    }

    /// Returns a matrix of the selected rows; for a stack, the selected rows of each matrix.
    pub fn select_rows(&self, indices: &Array) -> Result<Self> {
        let pick = |array: &Array| Ok(array.take_axis(indices, -2)?.contiguous()?);
        self.mapped(pick)
    }

    /// Evaluates the arrays.
    pub fn evaluated(self) -> Result<Self> {
        eval(self.arrays())?;
        Ok(self)
    }

    /// Concatenates matrices, or stacks of equal length, along the output axis. `parts` must not be empty and must share a scheme.
    pub fn stack(parts: &[&Self]) -> Result<Self> {
        let join = |arrays: Vec<&Array>| array::stacked(&arrays);
        let biases: Option<Vec<&Array>> = parts.iter().map(|part| part.biases.as_ref()).collect();
        let row_scales: Option<Vec<&Array>> = parts.iter().map(|part| part.row_scales.as_ref()).collect();
        Ok(Self {
            scheme: parts[0].scheme,
            weight: join(parts.iter().map(|part| &part.weight).collect())?,
            scales: join(parts.iter().map(|part| &part.scales).collect())?,
            biases: biases.map(join).transpose()?,
            row_scales: row_scales.map(join).transpose()?,
            inputs: parts[0].inputs.clone(),
        })
    }

    /// Splits the rows evenly into a stack of `matrices` matrices, `[matrices, output, input]`.
    pub fn reshape_to_stack(&self, matrices: usize) -> Result<Self> {
        self.mapped(|array| Ok(array.reshape(&[matrices as i32, -1, array.dim(-1)])?))?.evaluated()
    }

    /// Returns the dequantized matrix `[..., output, input]` in `dtype`.
    pub fn dequantize(&self, dtype: Dtype) -> Result<Array> {
        let dequantizer = Dequantizer::new(self.scheme);
        let words: &[u32] = array::host(&self.weight)?;
        let width = self.weight.dim(-1) as usize;
        let (rows, inputs) = (words.len() / width, self.scheme.inputs(width));
        let single = |array: &Array| array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous());
        let biases = self.biases.as_ref().map(single).transpose()?;
        let biases: Option<&[f32]> = biases.as_ref().map(array::host).transpose()?;
        let scales: Vec<f32> = if self.scheme.has_biases() {
            array::host::<f32>(&single(&self.scales)?)?.to_vec()
        } else {
            array::host::<u8>(&self.scales)?.iter().map(|&code| dequantizer.scale(code)).collect()
        };
        let row_scales = self.row_scales.as_ref().map(single).transpose()?;
        let row_scales: Option<&[f32]> = row_scales.as_ref().map(array::host).transpose()?;
        let groups = scales.len() / rows;
        let step = (CHUNK / inputs).max(1);
        let mut result = zeros_dtype(&[rows as i32, inputs as i32], dtype)?;
        for start in (0..rows).step_by(step) {
            let end = rows.min(start + step);
            let some = start * groups..end * groups;
            let biases = biases.map(|biases| &biases[some.clone()]);
            let mut numbers =
                dequantizer.dequantize(&words[start * width..end * width], &scales[some], biases);
            if let Some(scales) = row_scales {
                for (row, scale) in numbers.chunks_exact_mut(inputs).zip(&scales[start..end]) {
                    for number in row {
                        *number *= scale;
                    }
                }
            }
            let numbers =
                self.restored(&Array::from_slice(&numbers, &[(end - start) as i32, inputs as i32]))?;
            result.try_index_mut(start as i32..end as i32, numbers.as_dtype(dtype)?)?;
            result.eval()?;
        }
        let shape = self.weight.shape();
        let shape = [&shape[..shape.len() - 1], &[inputs as i32]].concat();
        Ok(result.reshape(&shape)?)
    }

    /// Like [`dequantize`](Self::dequantize), but with MLX's operation and its rounding. The result is not evaluated.
    pub fn dequantize_on_device(&self, dtype: Dtype) -> Result<Array> {
        let Some(scales) = &self.row_scales else {
            return self.restored(&mlx_sys::dequantize(self.operand(), dtype)?);
        };
        let numbers = mlx_sys::dequantize(self.operand(), Dtype::Float32)?;
        self.restored(&multiply(&numbers, scales)?.as_dtype(dtype)?)
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight, &self.scales].into_iter().chain(&self.biases).chain(&self.row_scales)
    }

    /// Applies `change` to each array.
    fn mapped(&self, change: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        Ok(Self {
            scheme: self.scheme,
            weight: change(&self.weight)?,
            scales: change(&self.scales)?,
            biases: self.biases.as_ref().map(&change).transpose()?,
            row_scales: self.row_scales.as_ref().map(&change).transpose()?,
            inputs: self.inputs.clone(),
        })
    }

    fn operand(&self) -> PackedMatrix<'_> {
        PackedMatrix {
            weight: &self.weight,
            scales: &self.scales,
            biases: self.biases.as_ref(),
            group: self.scheme.group_size as i32,
            bits: self.scheme.bits as i32,
            mode: name_of(self.scheme.mode),
        }
    }
}

/// Multiplies a product `[.., rows, output]` by the scales of its outputs, `[.., output, 1]`, in f32.
fn scaled(product: &Array, scales: &Array) -> Result<Array> {
    Ok(multiply(product, scales.swap_axes(-1, -2)?)?.as_dtype(product.dtype())?)
}

/// Returns MLX's name of a mode.
fn name_of(mode: Mode) -> &'static CStr {
    match mode {
        Mode::Affine => c"affine",
        Mode::Mxfp4 => c"mxfp4",
        Mode::Mxfp8 => c"mxfp8",
        Mode::Nvfp4 => c"nvfp4",
    }
}
