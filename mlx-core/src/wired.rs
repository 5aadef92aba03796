//! Wired memory, which macOS may not page out of a GPU's reach, and MLX's memory limit. Without wired memory, a large model runs many times
//! slower. With too much of it, the system itself stops working. At its memory limit, MLX waits before it allocates more.

use std::sync::{Mutex, OnceLock, PoisonError};

use mlx_rs::memory;

use crate::backend::{GpuMemory, gpu_memory};
use crate::error::Result;

/// The memory left for the system and other programs: a share of all memory, but at least a number of bytes.
const LEFT: f64 = 0.35;
const LEAST_LEFT: u64 = 8 << 30;

/// The bytes held by all engines of this process.
static HELD: Mutex<u64> = Mutex::new(0);

/// MLX's memory limit before the first change.
static FIRST_LIMIT: OnceLock<u64> = OnceLock::new();

/// A hold of an engine on memory. Drop it when nothing is pending on the device.
pub(crate) struct Wired(u64);

impl Wired {
    /// Holds this many bytes for weights and states, as far as the system can spare them. Does nothing on systems without such memory.
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
    let memory = match gpu_memory() {
        Ok(Some(memory)) => memory,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "the size of the GPU's memory is unknown");
            return;
        }
    };
    if let Err(error) = limit_memory(*total, memory) {
        tracing::warn!(%error, "cannot limit the memory of MLX");
    }
    let limit = wired_limit(*total, memory);
    // macOS 14 does not have such a limit.
    match memory::set_wired_limit(usize::try_from(limit).unwrap_or(usize::MAX)) {
        Ok(_) => tracing::debug!(limit, "set the limit of wired memory, in bytes"),
        Err(error) => tracing::warn!(%error, limit, "cannot wire memory"),
    }
}

fn limit_memory(held: u64, memory: GpuMemory) -> Result<()> {
    let now = memory::memory_limit()? as u64;
    let first = *FIRST_LIMIT.get_or_init(|| now);
    memory::set_memory_limit(usize::try_from(memory_limit(held, memory, first)).unwrap_or(usize::MAX))?;
    Ok(())
}

/// Returns the memory at which MLX waits for running work before it allocates more, for engines that hold `held` bytes. `first` is MLX's
/// default: one and a half times the system's recommendation.
fn memory_limit(held: u64, memory: GpuMemory, first: u64) -> u64 {
    if held == 0 { first } else { held.max(memory.recommended).min(first) }
}

/// Returns the bytes that may be wired for engines that hold `held` bytes.
fn wired_limit(held: u64, memory: GpuMemory) -> u64 {
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
        assert_eq!(wired_limit(6 * GIB, small), 6 * GIB);
        assert_eq!(wired_limit(12 * GIB, small), 8 * GIB, "8 GiB are left of 16");
        let large = GpuMemory { recommended: 107 * GIB, total: 128 * GIB };
        assert_eq!(wired_limit(70 * GIB, large), 70 * GIB);
        assert_eq!(wired_limit(200 * GIB, large), (128.0 * 0.65 * GIB as f64) as u64 + 1);
        assert_eq!(wired_limit(GIB, GpuMemory { recommended: 5 * GIB, total: 8 * GIB }), 0);
    }

    #[test]
    fn mlx_waits_where_the_promises_end() {
        let memory = GpuMemory { recommended: 107 * GIB, total: 128 * GIB };
        let first = 121 * GIB;
        assert_eq!(memory_limit(70 * GIB, memory, first), 107 * GIB, "the system recommends more");
        assert_eq!(memory_limit(115 * GIB, memory, first), 115 * GIB, "a budget above that was asked for");
        assert_eq!(memory_limit(200 * GIB, memory, first), first);
        assert_eq!(memory_limit(0, memory, first), first, "the last engine has ended");
    }
}
