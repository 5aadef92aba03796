//! The bytes of tensors on their way from files to the device, one tensor after the other.

use memmap2::MmapMut;

use crate::error::{Error, Result};

/// Memory up to this size is kept for the next tensor: new memory has to be cleared by the system first. More would add to the peak.
const KEPT: usize = 16 << 20;

/// Memory of the system's own, which has it back at once: an allocator would keep what the largest tensor takes. Its address is a multiple of
/// every number's size.
#[derive(Debug, Default)]
pub(super) struct Buffer(Option<MmapMut>);

impl Buffer {
    /// Room for so many bytes, with what was there before.
    pub(super) fn room(&mut self, length: usize) -> Result<&mut [u8]> {
        let fits = |memory: &MmapMut| (length..=length.max(KEPT)).contains(&memory.len());
        if !self.0.as_ref().is_some_and(fits) {
            self.0 = None;
            // The system has no memory of no bytes.
            let memory = MmapMut::map_anon(length.max(1));
            self.0 =
                Some(memory.map_err(|error| Error::Array(format!("no memory for {length} bytes: {error}")))?);
        }
        Ok(self.0.as_mut().map_or(&mut [], |memory| &mut memory[..length]))
    }
}
