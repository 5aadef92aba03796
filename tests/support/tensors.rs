//! Reads and writes safetensors files for tests.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};

/// Type, shape and bytes of a tensor.
pub type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// Reads all tensors of a file, by name.
///
/// # Panics
/// If the file is not valid.
pub fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).expect("the file is there");
    let file = SafeTensors::deserialize(&bytes).expect("the fixture is good");
    let tensor = |view: &TensorView| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    file.tensors().iter().map(|(name, view)| (name.clone(), tensor(view))).collect()
}

/// Writes `tensors` to a file.
///
/// # Panics
/// If the bytes of a tensor do not fit its shape.
pub fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes fit the shape"))
    });
    serialize_to_file(views, None, path).expect("the file can be written");
}
