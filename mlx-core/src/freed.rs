//! The share of a memory budget that MLX may use for freed arrays.

/// The divisor of an engine's budget: MLX may cache this fraction of it as freed arrays for reuse.
const CACHE_DIVISOR: u64 = 16;

/// Returns the bytes of freed arrays that MLX may cache, for this budget of an engine.
pub(crate) fn cache_limit(budget: u64) -> u64 {
    budget / CACHE_DIVISOR
}

/// Returns the smallest budget that leaves `bytes` in addition to freed arrays.
pub(crate) fn budget_for(bytes: u64) -> u64 {
    bytes.saturating_mul(CACHE_DIVISOR) / (CACHE_DIVISOR - 1) + CACHE_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_leaves_what_it_is_made_for() {
        for bytes in (0..5000).chain([1 << 30, (1 << 40) + 7]) {
            let budget = budget_for(bytes);
            assert!(
                (bytes..bytes + 2 * CACHE_DIVISOR).contains(&(budget - cache_limit(budget))),
                "{bytes}: {budget}"
            );
        }
    }
}
