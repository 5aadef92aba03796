//! Matrices whose numbers take a few bits each: MLX's packed weights.

use std::ffi::CStr;

use mlx_rs::ops::indexing::TryIndexMutOp;
use mlx_rs::ops::zeros_dtype;
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use crate::array;
use crate::error::{Error, Result};
use crate::mlx_sys::{self, Operand};
use crate::quantization::dequantize::Unpacker;
use crate::quantization::{Mode, QuantScheme};

/// The numbers that are unpacked at once: a large matrix is held twice only in part.
const AT_ONCE: usize = 4 << 20;

/// A matrix `[output, input]`, or a stack of them.
#[derive(Clone)]
pub struct QuantizedMatrix {
    packing: QuantScheme,
    /// `[..., output, words]` of u32.
    weight: Array,
    /// `[..., output, groups]`
    scales: Array,
    /// Like the scales.
    biases: Option<Array>,
}

impl QuantizedMatrix {
    /// The caller has checked that the shapes fit.
    pub fn new(packing: QuantScheme, weight: Array, scales: Array, biases: Option<Array>) -> Self {
        Self { packing, weight, scales, biases }
    }

    /// Packs floats `[..., output, input]`, whose rows have whole groups, as MLX's tools do.
    pub fn pack(matrix: &Array, packing: QuantScheme) -> Result<Self> {
        let (group, bits) = (packing.group_size as i32, packing.bits as i32);
        let mut parts = mlx_sys::quantize(matrix, group, bits, name_of(packing.mode))?.into_iter();
        match (parts.next(), parts.next()) {
            (Some(weight), Some(scales)) => Ok(Self::new(packing, weight, scales, parts.next())),
            _ => Err(Error::Mlx(format!("quantize gave no scales for {packing}"))),
        }
    }

    /// The bytes of its words, scales and, in affine mode, biases, as files have them.
    pub fn to_bytes(&self) -> Result<Vec<Vec<u8>>> {
        self.arrays().map(|array| Ok(array::to_bytes(array)?.1)).collect()
    }

    /// Whether `other` has the same packing, so that they may be stacked.
    pub fn is_like(&self, other: &Self) -> bool {
        self.packing == other.packing
    }

    /// The bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// `[..., input]` to `[..., output]`.
    pub fn multiply(&self, input: &Array) -> Result<Array> {
        mlx_sys::quantized_matmul(input, self.operand())
    }

    /// Each row `[.., 1, input]` times the matrix of a stack that `chosen` names for it, to `[.., 1, output]`.
    pub fn gather_multiply(&self, input: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        mlx_sys::gather_quantized_matmul(input, self.operand(), chosen, sorted)
    }

    /// The rows with these indices, `[R, input]`, of a single matrix.
    pub fn rows(&self, indices: &Array, dtype: Dtype) -> Result<Array> {
        mlx_sys::dequantize(self.picked(indices)?.operand(), dtype)
    }

    /// The rows with these indices as a matrix of their own; of a stack, those of each matrix.
    pub fn picked(&self, indices: &Array) -> Result<Self> {
        let pick = |array: &Array| array.take_axis(indices, -2)?.contiguous();
        let biases = self.biases.as_ref().map(pick).transpose()?;
        Ok(Self::new(self.packing, pick(&self.weight)?, pick(&self.scales)?, biases))
    }

    /// The same, no longer waiting to be computed.
    pub fn computed(self) -> Result<Self> {
        eval(self.arrays())?;
        Ok(self)
    }

    /// Matrices of one packing, or stacks of as many, as a single one, its outputs theirs one after the other. There must be one at
    /// least.
    pub fn stack(parts: &[&Self]) -> Result<Self> {
        let join = |arrays: Vec<&Array>| array::stacked(&arrays);
        let biases: Option<Vec<&Array>> = parts.iter().map(|part| part.biases.as_ref()).collect();
        Ok(Self {
            packing: parts[0].packing,
            weight: join(parts.iter().map(|part| &part.weight).collect())?,
            scales: join(parts.iter().map(|part| &part.scales).collect())?,
            biases: biases.map(join).transpose()?,
        })
    }

    /// All numbers as `dtype`, `[..., output, input]`.
    pub fn unpacked(&self, dtype: Dtype) -> Result<Array> {
        let unpacker = Unpacker::new(self.packing);
        let words: &[u32] = array::host(&self.weight)?;
        let width = self.weight.dim(-1) as usize;
        let (rows, inputs) = (words.len() / width, self.packing.inputs(width));
        let single = |array: &Array| array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous());
        let biases = self.biases.as_ref().map(single).transpose()?;
        let biases: Option<&[f32]> = biases.as_ref().map(array::host).transpose()?;
        let scales: Vec<f32> = if self.packing.has_biases() {
            array::host::<f32>(&single(&self.scales)?)?.to_vec()
        } else {
            array::host::<u8>(&self.scales)?.iter().map(|&code| unpacker.scale(code)).collect()
        };
        let groups = scales.len() / rows;
        let step = (AT_ONCE / inputs).max(1);
        let mut whole = zeros_dtype(&[rows as i32, inputs as i32], dtype)?;
        for start in (0..rows).step_by(step) {
            let end = rows.min(start + step);
            let some = start * groups..end * groups;
            let biases = biases.map(|biases| &biases[some.clone()]);
            let numbers = unpacker.unpack(&words[start * width..end * width], &scales[some], biases);
            let numbers = Array::from_slice(&numbers, &[(end - start) as i32, inputs as i32]);
            whole.try_index_mut(start as i32..end as i32, numbers.as_dtype(dtype)?)?;
            whole.eval()?;
        }
        let shape = self.weight.shape();
        let shape = [&shape[..shape.len() - 1], &[inputs as i32]].concat();
        Ok(whole.reshape(&shape)?)
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight, &self.scales].into_iter().chain(&self.biases)
    }

    fn operand(&self) -> Operand<'_> {
        Operand {
            weight: &self.weight,
            scales: &self.scales,
            biases: self.biases.as_ref(),
            group: self.packing.group_size as i32,
            bits: self.packing.bits as i32,
            mode: name_of(self.packing.mode),
        }
    }
}

/// MLX's name of a mode.
fn name_of(mode: Mode) -> &'static CStr {
    match mode {
        Mode::Affine => c"affine",
        Mode::Mxfp4 => c"mxfp4",
        Mode::Mxfp8 => c"mxfp8",
        Mode::Nvfp4 => c"nvfp4",
    }
}
