//! What is asked for and taken: tensors by name and shape, and matrices.

use mlx_rs::Array;

use crate::quantization::QuantizedMatrix;

/// A tensor or a module by its name, and the shape of the tensor, or of the module's matrix, before packing.
pub(crate) type Named<'n> = (&'n str, &'n [usize]);

/// A tensor by its name in the files, the shape that it must have, and what says so.
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) reason: String,
}

/// A matrix `[output, input]`, or a stack of them.
pub(crate) enum Taken {
    /// Floats.
    Dense(Array),
    /// Some bits for each number.
    Packed(QuantizedMatrix),
}
