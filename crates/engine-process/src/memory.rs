//! The memory of this process, in its statistics.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlx_core::engine::EngineStats;
use mlx_core::machine::footprint;

/// The time between two readings, since a reading takes as long as a small step.
const INTERVAL: Duration = Duration::from_secs(1);

/// The last reading.
static LAST: Mutex<Option<(Instant, u64)>> = Mutex::new(None);

/// Adds the memory of this process to the statistics.
pub(crate) fn with_memory(stats: EngineStats) -> EngineStats {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = last.filter(|(read, _)| read.elapsed() < INTERVAL);
    let (_, process_bytes) =
        *last.insert(known.unwrap_or_else(|| (Instant::now(), footprint().unwrap_or_default())));
    EngineStats { process_bytes, ..stats }
}
