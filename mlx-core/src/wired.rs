//! Wired memory: arrays that macOS may not move out of a GPU's reach. Without it a large model runs many times slower; with too much of it
//! the system itself does not run any more.

use std::sync::{Mutex, PoisonError};

use crate::backend::{GpuMemory, gpu_memory};

/// What the system and other programs keep: a share of all memory, and no less than so many bytes.
const LEFT: f64 = 0.35;
const LEAST_LEFT: u64 = 8 << 30;

/// The bytes that all engines of this process hold.
static HELD: Mutex<u64> = Mutex::new(0);

/// A hold on the memory of an engine; it ends with this value, when nothing may be pending on the device.
pub(crate) struct Wired(u64);

impl Wired {
    /// Holds so many bytes of weights and states, as far as the system can spare them. Does nothing where there is no such memory.
    pub(crate) fn hold(bytes: u64) -> Self {
        change(|held| held + bytes);
        Self(bytes)
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        change(|held| held - self.0);
    }
}

fn change(held: impl FnOnce(u64) -> u64) {
    let mut total = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    *total = held(*total);
    let limit = match gpu_memory() {
        Ok(Some(memory)) => limit(*total, memory),
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "the memory of the GPU is not known");
            return;
        }
    };
    // macOS 14 has no such limit.
    match mlx_rs::memory::set_wired_limit(usize::try_from(limit).unwrap_or(usize::MAX)) {
        Ok(_) => tracing::debug!(limit, "bytes that stay wired"),
        Err(error) => tracing::warn!(%error, limit, "memory cannot be wired"),
    }
}

/// The bytes that may be wired for engines that hold so many.
fn limit(held: u64, memory: GpuMemory) -> u64 {
    let left = LEAST_LEFT.max((memory.total as f64 * LEFT) as u64);
    held.min(memory.recommended).min(memory.total.saturating_sub(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_system_keeps_its_share() {
        let small = GpuMemory { recommended: 10 * GIB, total: 16 * GIB };
        assert_eq!(limit(6 * GIB, small), 6 * GIB);
        assert_eq!(limit(12 * GIB, small), 8 * GIB, "8 GiB are left of 16");
        let large = GpuMemory { recommended: 107 * GIB, total: 128 * GIB };
        assert_eq!(limit(70 * GIB, large), 70 * GIB);
        assert_eq!(limit(200 * GIB, large), (128.0 * 0.65 * GIB as f64) as u64 + 1);
        assert_eq!(limit(GIB, GpuMemory { recommended: 5 * GIB, total: 8 * GIB }), 0);
    }
}
