//! The tensors of a GGUF file, in MLX's packing and under the names of transformers.

use std::path::Path;
use std::sync::Arc;

use mlx_gguf::{GgufFolder, Tensor};
use safetensors::Dtype;

use super::checkpoint::Checkpoint;
use super::source::ReadAt;
use crate::error::Result;

impl ReadAt for Tensor {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(Tensor::read_at(self, place, bytes)?)
    }

    fn path(&self) -> &Path {
        Tensor::path(self)
    }
}

/// Returns the tensors of the file at `path`.
pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let folder = GgufFolder::open(path)?;
    if folder.has_tower() {
        tracing::warn!(file = %path.display(), "the tower for images or audio in a GGUF file is not used; the model runs text-only");
    }
    let mut checkpoint = Checkpoint::with_float_type(folder.float_type().map(dtype));
    for tensor in folder.tensors()? {
        let (name, dtype, shape) = (tensor.name().to_owned(), dtype(tensor.dtype()), tensor.shape().to_vec());
        let (file_bytes, origin) = (tensor.stored_bytes(), tensor.quantization());
        let entry = checkpoint.add_computed(name, dtype, shape, Arc::new(tensor));
        (entry.file_bytes, entry.origin) = (file_bytes, origin);
    }
    Ok(checkpoint)
}

fn dtype(found: mlx_gguf::Dtype) -> Dtype {
    match found {
        mlx_gguf::Dtype::F32 => Dtype::F32,
        mlx_gguf::Dtype::F16 => Dtype::F16,
        mlx_gguf::Dtype::BF16 => Dtype::BF16,
        mlx_gguf::Dtype::U32 => Dtype::U32,
        mlx_gguf::Dtype::U8 => Dtype::U8,
    }
}
