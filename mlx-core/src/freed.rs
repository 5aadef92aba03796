//! The part of a memory budget that freed arrays may keep.

/// Of the bytes that an engine may take, MLX may keep one in so many as freed arrays for reuse.
const FREED: u64 = 16;

/// Bytes of freed arrays that MLX may keep for reuse, of all that an engine may take.
pub(crate) fn freed(budget: u64) -> u64 {
    budget / FREED
}

/// The least budget that leaves so many bytes beside freed arrays.
pub(crate) fn budget_for(bytes: u64) -> u64 {
    bytes.saturating_mul(FREED) / (FREED - 1) + FREED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_leaves_what_it_is_made_for() {
        for bytes in (0..5000).chain([1 << 30, (1 << 40) + 7]) {
            let budget = budget_for(bytes);
            assert!((bytes..bytes + 2 * FREED).contains(&(budget - freed(budget))), "{bytes}: {budget}");
        }
    }
}
