//! Requests for tensors by name and shape, and the matrices they yield.

use mlx_rs::Array;

use crate::quantization::QuantizedMatrix;

/// A tensor's name and shape, or a module's name and the shape of its matrix before packing.
pub(crate) type NamedShape<'n> = (&'n str, &'n [usize]);

/// A tensor by its name in the files, the shape it must have, and the source of that shape for error messages.
pub(super) struct TensorRequest {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) reason: String,
}

/// A matrix `[output, input]`, or a stack of them.
pub(crate) enum LoadedMatrix {
    /// A matrix of floats.
    Dense(Array),
    /// A quantized matrix.
    Packed(QuantizedMatrix),
}
