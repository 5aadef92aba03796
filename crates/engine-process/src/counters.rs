//! The counters of an engine, which continue over its children.

use mlx_core::engine::EngineStats;

/// Returns the counters, which never decrease.
pub(crate) fn counters(stats: &mut EngineStats) -> [&mut u64; 19] {
    let EngineStats {
        finished,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        drafted_tokens,
        accepted_tokens,
        steps_ahead,
        steps_dropped,
        preemptions,
        prefix_hits,
        prefix_evictions,
        prefix_restores,
        damaged_blocks,
        restarts,
        resumed,
        ..
    } = stats;
    [
        finished,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        drafted_tokens,
        accepted_tokens,
        steps_ahead,
        steps_dropped,
        preemptions,
        prefix_hits,
        prefix_evictions,
        prefix_restores,
        damaged_blocks,
        resumed,
        &mut restarts.exited,
        &mut restarts.killed,
        &mut restarts.stalled,
        &mut restarts.garbled,
        &mut restarts.lost_machine,
    ]
}
