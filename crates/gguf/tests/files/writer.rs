//! Writes small GGUF files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_gguf::{GgufFile, Placement, Tensor, tensors};

/// A file under construction. Fields that tests damage are public.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    pub(crate) keys: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Writer {
    pub(crate) fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push((name.to_owned(), kind, value.to_vec()));
        self
    }

    /// Adds a tensor. The shape has the innermost axis first, as in the file.
    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, bytes));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (name, kind, value) in &self.keys {
            out.extend(text(name));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut start = 0u64;
        for (name, shape, kind, bytes) in &self.tensors {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            out.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(start.to_le_bytes());
            start += (bytes.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(bytes);
        }
        out
    }

    pub(crate) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).expect("the folder is writable");
        path
    }
}

/// A string of the format.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Writes a file with one tensor, `w`, and returns its tensors in the folder under `placement`.
pub(crate) fn placed(
    shape: &[u64],
    kind: u32,
    bytes: Vec<u8>,
    placement: Placement,
) -> (tempfile::TempDir, mlx_gguf::Result<Vec<Tensor>>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = Writer::default().tensor("w", shape, kind, bytes).write(folder.path(), "model.gguf");
    let file = Arc::new(GgufFile::open(&path).expect("a valid file"));
    let tensors = tensors(&file, vec![(0, placement)]);
    (folder, tensors)
}

/// Returns all bytes of a tensor.
pub(crate) fn all(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes() as usize];
    tensor.read_at(0, &mut bytes).expect("the tensor is readable");
    bytes
}
