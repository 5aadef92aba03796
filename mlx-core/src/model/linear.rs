//! A projection `y = x W^T + b`. Invariant: only this file distinguishes dense and packed weights.

use mlx_rs::ops::{add, addmm, concatenate, matmul, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::low_rank::LowRank;
use crate::array;
use crate::error::Result;
use crate::quantization::QuantizedMatrix;
use crate::weights::{LoadedMatrix, Shard, Weights};

/// Weights `[output, input]` on the device.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// Weights as a transposed view, `[input, output]`, which needs no copy.
    Dense(Array),
    /// Quantized weights.
    QuantizedMatrix(QuantizedMatrix),
}

impl Matrix {
    /// Loads `{name}.weight` and the tensors that belong to it.
    pub(crate) fn load(weights: &mut Weights, name: &str, outputs: usize, inputs: usize) -> Result<Self> {
        Self::load_as_one(weights, &[(name, outputs)], inputs)
    }

    /// Loads modules that are [alike](Weights::have_same_format) as one matrix. Each has its number of outputs.
    fn load_as_one(weights: &mut Weights, modules: &[(&str, usize)], inputs: usize) -> Result<Self> {
        let shapes: Vec<_> = modules.iter().map(|(_, outputs)| [*outputs, inputs]).collect();
        let named: Vec<_> =
            modules.iter().zip(&shapes).map(|((name, _), shape)| (*name, shape.as_slice())).collect();
        let weight = match weights.take_modules(&named)? {
            LoadedMatrix::Packed(packed) => return Ok(Self::QuantizedMatrix(packed)),
            LoadedMatrix::Dense(weight) => weight,
        };
        let matrix = weight.swap_axes(0, 1)?;
        // An evaluated view is multiplied without a copy.
        matrix.eval()?;
        Ok(Self::Dense(matrix))
    }

    /// Returns the weights as floats, `[output, input]`.
    fn floats(&self, dtype: Dtype) -> Result<Array> {
        match self {
            Self::Dense(weight) => Ok(weight.swap_axes(0, 1)?.as_dtype(dtype)?),
            Self::QuantizedMatrix(packed) => packed.dequantize(dtype),
        }
    }

    /// Returns the rows with these indices as `dtype`: `[R]` to `[R, input]`.
    pub(crate) fn rows(&self, indices: &Array, dtype: Dtype) -> Result<Array> {
        match self {
            Self::Dense(weight) => Ok(weight.swap_axes(0, 1)?.take_axis(indices, 0)?.as_dtype(dtype)?),
            Self::QuantizedMatrix(packed) => packed.rows(indices, dtype),
        }
    }

    /// Maps `[..., input]` to `[..., output]`.
    fn multiply(&self, input: &Array) -> Result<Array> {
        match self {
            Self::Dense(weight) => Ok(matmul(input, weight)?),
            Self::QuantizedMatrix(packed) => packed.multiply(input),
        }
    }

    /// Returns the matrix with its outputs in another order.
    fn reordered(&self, order: &Array) -> Result<Self> {
        Ok(match self {
            Self::Dense(weight) => {
                let matrix = weight.swap_axes(0, 1)?.take_axis(order, 0)?.swap_axes(0, 1)?;
                matrix.eval()?;
                Self::Dense(matrix)
            }
            Self::QuantizedMatrix(packed) => Self::QuantizedMatrix(packed.select_rows(order)?.evaluated()?),
        })
    }

    fn has_same_scheme(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dense(one), Self::Dense(other)) => one.dtype() == other.dtype(),
            (Self::QuantizedMatrix(one), Self::QuantizedMatrix(other)) => one.has_same_scheme(other),
            _ => false,
        }
    }

    /// Stacks matrices of one scheme along the outputs.
    fn stack(parts: &[Self]) -> Result<Self> {
        let (mut dense, mut packed) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Self::Dense(weight) => dense.push(weight.swap_axes(0, 1)?),
                Self::QuantizedMatrix(weight) => packed.push(weight),
            }
        }
        if packed.is_empty() {
            let dense: Vec<&Array> = dense.iter().collect();
            let matrix = array::stacked(&dense)?.swap_axes(0, 1)?;
            matrix.eval()?;
            return Ok(Self::Dense(matrix));
        }
        QuantizedMatrix::stack(&packed).map(Self::QuantizedMatrix)
    }
}

/// One or more projections of the same input, in as few matrix products as their weights allow.
#[derive(Clone)]
pub(crate) struct Linear {
    /// The outputs of the matrices are concatenated. There is more than one only if parts have different schemes.
    matrices: Vec<Matrix>,
    /// `[output]`
    bias: Option<Array>,
    /// The change of an adapter.
    low_rank: Option<Box<LowRank>>,
    /// The machines that have the other inputs. Their products are added to this one's.
    shard: Option<Box<Shard>>,
}

/// One projection by its name in the checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// The tensor names are `{name}.weight` and `{name}.bias`.
    pub(crate) name: &'a str,
    pub(crate) outputs: usize,
}

/// The name of a part, its number of outputs, and the order of the outputs if it differs from the files.
type PartOrder<'a> = (&'a str, usize, Option<Array>);

impl Linear {
    /// Loads `parts` and stacks them along the output axis. With `bias`, each part has one.
    pub(crate) fn load(weights: &mut Weights, parts: &[Part], inputs: usize, bias: bool) -> Result<Self> {
        let parts = parts.iter().map(|part| (*part, None)).collect();
        Self::load_in_order(weights, parts, inputs, bias)
    }

    /// Loads one projection. If the layer is split across machines, each has some of the inputs, and the products are summed.
    pub(crate) fn load_row_parallel(
        weights: &mut Weights,
        part: Part,
        inputs: usize,
        bias: bool,
    ) -> Result<Self> {
        let shard = weights.shard().cloned().map(Box::new);
        Self::load_adapted(weights, &[(part.name, part.outputs, None)], (inputs, bias), shard)
    }

    /// Like [`load`](Self::load), but reorders the outputs of parts: output `i` is output `order[i]` of the checkpoint.
    pub(crate) fn load_in_order(
        weights: &mut Weights,
        parts: Vec<(Part, Option<Vec<i32>>)>,
        inputs: usize,
        bias: bool,
    ) -> Result<Self> {
        let in_order = |order: Vec<i32>| Array::from_slice(&order, &[order.len() as i32]);
        let parts = parts.into_iter().map(|(part, order)| (part.name, part.outputs, order.map(in_order)));
        let parts: Vec<PartOrder> = parts.collect();
        Self::load_adapted(weights, &parts, (inputs, bias), None)
    }

    /// Loads `parts` with an adapter's change of them, if there is one. `shard` is the rank of this machine if each has some of the inputs.
    fn load_adapted(
        weights: &mut Weights,
        parts: &[PartOrder],
        (inputs, bias): (usize, bool),
        shard: Option<Box<Shard>>,
    ) -> Result<Self> {
        let names: Vec<&str> = parts.iter().map(|(name, ..)| *name).collect();
        let linear = weights.shared(&names, |weights| Self::take(weights, parts, inputs, bias))?;
        let linear = Self { shard, ..linear };
        match LowRank::take(weights, parts, inputs)? {
            Some(low_rank) => linear.with_adapter(low_rank, weights.dtype()),
            None => Ok(linear),
        }
    }

    fn take(weights: &mut Weights, parts: &[PartOrder], inputs: usize, bias: bool) -> Result<Self> {
        let (mut matrices, mut biases, mut has_bias) = (Vec::new(), Vec::new(), false);
        let is_alike = |one: &PartOrder, other: &PartOrder| {
            one.2.is_none() && other.2.is_none() && weights.have_same_format(one.0, other.0)
        };
        let alike: Vec<_> = parts.chunk_by(is_alike).collect();
        for parts in alike {
            let modules: Vec<_> = parts.iter().map(|(name, outputs, _)| (*name, *outputs)).collect();
            let matrix = Matrix::load_as_one(weights, &modules, inputs)?;
            let order = parts.first().and_then(|(.., order)| order.as_ref());
            matrices.push(order.map_or(Ok(matrix.clone()), |order| matrix.reordered(order))?);
        }
        for (name, outputs, order) in parts.iter().filter(|_| bias) {
            let bias = weights.take_bias(name, *outputs)?;
            has_bias |= bias.is_some();
            let bias = bias.map_or_else(|| zeros_dtype(&[*outputs as i32], weights.dtype()), Ok)?;
            biases.push(order.as_ref().map_or(Ok(bias.clone()), |order| bias.take_axis(order, 0))?);
        }
        let matrices =
            matrices.chunk_by(Matrix::has_same_scheme).map(Matrix::stack).collect::<Result<_>>()?;
        let biases: Vec<&Array> = biases.iter().collect();
        Ok(Self {
            matrices,
            bias: has_bias.then(|| array::stacked(&biases)).transpose()?,
            low_rank: None,
            shard: None,
        })
    }

    /// Creates a projection from a loaded matrix, such as a tied embedding.
    pub(crate) fn new(matrix: Matrix, bias: Option<Array>) -> Self {
        Self { matrices: vec![matrix], bias, low_rank: None, shard: None }
    }

    /// Adds a change to weights of type `dtype`.
    pub(super) fn with_adapter(self, change: LowRank, dtype: Dtype) -> Result<Self> {
        if !change.has_magnitudes() {
            return Ok(Self { low_rank: Some(Box::new(change)), ..self });
        }
        let floats = self.matrices.iter().map(|matrix| matrix.floats(dtype)).collect::<Result<Vec<_>>>()?;
        let low_rank = change.with_dora_ratio(&concatenate(&floats, 0)?, self.shard.as_deref())?;
        Ok(Self { low_rank: Some(Box::new(low_rank)), ..self })
    }

    /// Maps `[..., input]` to `[..., output]`.
    pub(crate) fn forward(&self, input: &Array) -> Result<Array> {
        match &self.low_rank {
            Some(change) if self.shard.is_some() => self.summed_change(change, input),
            None => self.with_bias(input),
            Some(change) if !change.has_dora_ratio() => change.apply(input, self.with_bias(input)?),
            Some(change) => {
                let output = change.apply(input, self.product(input)?)?;
                self.bias.as_ref().map_or(Ok(output.clone()), |bias| Ok(add(&output, bias)?))
            }
        }
    }

    /// Maps like [`forward`](Self::forward) if each machine has some of the inputs, and those of the change.
    fn summed_change(&self, change: &LowRank, input: &Array) -> Result<Array> {
        let sum = self.summed(&change.added(input, self.product_here(input)?)?)?;
        let output = change.with_magnitudes(input, sum)?;
        self.bias.as_ref().map_or(Ok(output.clone()), |bias| Ok(add(&output, bias)?))
    }

    fn with_bias(&self, input: &Array) -> Result<Array> {
        match (self.matrices.as_slice(), &self.bias) {
            ([Matrix::Dense(weight)], Some(bias)) if self.shard.is_none() => {
                Ok(addmm(bias, input, weight, None, None)?)
            }
            (_, Some(bias)) => Ok(add(self.product(input)?, bias)?),
            (_, None) => self.product(input),
        }
    }

    /// Returns the product without bias and changes.
    fn product(&self, input: &Array) -> Result<Array> {
        self.summed(&self.product_here(input)?)
    }

    /// Adds the products of the machines that have the other inputs.
    fn summed(&self, product: &Array) -> Result<Array> {
        self.shard.as_ref().map_or(Ok(product.clone()), |shard| shard.sum(product))
    }

    fn product_here(&self, input: &Array) -> Result<Array> {
        if let [only] = self.matrices.as_slice() {
            return only.multiply(input);
        }
        let products =
            self.matrices.iter().map(|matrix| matrix.multiply(input)).collect::<Result<Vec<_>>>()?;
        Ok(concatenate(&products, -1)?)
    }
}
