//! Randomness as a function of (seed, position, stream), and new seeds. Invariant: there is no state, so rollback, batching and
//! preemption cannot disturb it. No external crate is used, so upgrades cannot change it.

/// The use of a random number. Different streams at a position are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The draw of the token.
    Draw = 0,
    /// The decision whether XTC runs at this position.
    XtcGate = 1,
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that mixes all 64 bits.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The multiplier of the second word in [`combine`]: 2^64 divided by the golden ratio, made odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Combines two words: `mix(mix(first + GOLDEN) ^ (second * GOLDEN + 1))`, modulo 2^64.
fn combine(first: u64, second: u64) -> u64 {
    mix(mix(first.wrapping_add(GOLDEN)) ^ second.wrapping_mul(GOLDEN).wrapping_add(1))
}

/// Returns a number in (0, 1) for the token at `position` of a history: `(k + 1/2) / 2^24`, where `k` is the top 24 bits of
/// `combine(combine(seed, position), stream)`. It is never 0 or 1. It needs 25 bits, hence f64.
pub fn uniform(seed: u64, position: u64, stream: Stream) -> f64 {
    let top = combine(combine(seed, position), stream as u64) >> 40;
    (top as f64 + 0.5) / f64::from(1u32 << 24)
}

/// Returns the seed of choice `choice` of a request for several answers. The first choice uses the seed of the request, so it equals
/// the answer of a request for one. The others use `combine(seed, choice)`.
pub fn choice_seed(seed: u64, choice: u64) -> u64 {
    if choice == 0 { seed } else { combine(seed, choice) }
}

/// Returns a different seed on each call: a hash with the random keys that the standard library takes from the operating system. It is
/// below 2^53, so that JSON numbers can represent it.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of docs/sampling.md, `(seed, position, k)`. Other implementations must give the same values.
    #[test]
    fn test_vectors() {
        let vectors: [(u64, u64, u32); 5] = [
            (0, 0, 7_106_235),
            (0, 1, 14_339_980),
            (1, 0, 2_705_585),
            (42, 17, 8_592_416),
            (u64::MAX, 1 << 40, 2_664_324),
        ];
        for (seed, position, expected) in vectors {
            let value = uniform(seed, position, Stream::Draw) * 16_777_216.0 - 0.5;
            assert_eq!(value.to_bits(), f64::from(expected).to_bits(), "seed {seed}, position {position}");
        }
    }

    #[test]
    fn every_value_lies_strictly_inside_and_the_mean_is_a_half() {
        let count = 200_000;
        let mut sum = 0.0;
        for position in 0..count {
            let value = uniform(7, position, Stream::Draw);
            assert!(value > 0.0 && value < 1.0);
            sum += value;
        }
        // The standard error of the mean is 0.289 / sqrt(200 000) = 0.00065.
        assert!((sum / count as f64 - 0.5).abs() < 0.004);
    }
}
