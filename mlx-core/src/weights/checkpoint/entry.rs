//! The location, type and shape of a tensor.

use std::ops::Range;

use safetensors::Dtype;

use crate::weights::cut::Slice;

/// The location, type and shape of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The number of the file or computed tensor.
    pub(super) file: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(super) start: u64,
    /// Length in bytes.
    pub(crate) length: usize,
    /// Bytes in the files. They differ from the length if the tensor is computed.
    pub(crate) file_bytes: u64,
    /// The format in the files, if the tensor is computed in another one.
    pub(crate) origin: Option<&'static str>,
    /// True if it stays f32 on the device, even if the model computes in a smaller type.
    pub(crate) is_wide: bool,
    /// The selection of a larger tensor's bytes, if they are not contiguous in the file.
    pub(super) cut: Option<Slice>,
}

impl Entry {
    /// Creates the entry of a whole tensor with these bytes of the first file.
    pub(super) fn of(dtype: Dtype, shape: Vec<usize>, bytes: Range<usize>) -> Self {
        let (start, length) = (bytes.start as u64, bytes.len());
        let file_bytes = length as u64;
        Self { file: 0, dtype, shape, start, length, file_bytes, origin: None, is_wide: false, cut: None }
    }

    /// Returns a range of its bytes. The tensor must not be cut.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let file_bytes = self.share(range.len());
        Self { start: self.start + range.start as u64, length: range.len(), file_bytes, ..self.clone() }
    }

    /// Returns this tensor with another interpretation of its bytes. The caller has checked that the shape has as many.
    pub(in crate::weights) fn viewed_as(self, dtype: Dtype, shape: Vec<usize>) -> Self {
        Self { dtype, shape, ..self }
    }

    /// Returns the bytes in the files for `length` bytes of this tensor.
    fn share(&self, length: usize) -> u64 {
        let share = u128::from(self.file_bytes) * length as u128 / (self.length.max(1)) as u128;
        share as u64
    }

    /// Returns a slice of the tensor with this shape.
    pub(in crate::weights) fn cut(&self, shape: Vec<usize>, cut: Slice) -> Self {
        let elements: usize = self.shape.iter().product();
        let length = self.length / elements * shape.iter().product::<usize>();
        Self { shape, length, file_bytes: self.share(length), cut: Some(cut), ..self.clone() }
    }

    /// Returns true if it is a slice of a larger tensor.
    pub(in crate::weights) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }
}
