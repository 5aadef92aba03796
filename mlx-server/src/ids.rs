//! Ids of answers, messages and calls.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An id that nothing else has, also not after a restart: 24 random letters and digits. Each protocol writes a word of its own
/// before it.
pub(crate) fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    let digit = |number: u64| char::from_digit((number % 36) as u32, 36).unwrap_or('0');
    let mut id = String::new();
    for mut number in [random(), random()] {
        for _ in 0..12 {
            id.push(digit(number));
            number /= 36;
        }
    }
    id
}
