//! Replaces the placeholder tokens of a prompt by the tokens of its pictures or audio clips.

use crate::error::{Error, Result};

/// Replaces each `placeholder` by the tokens of the next item. Fails with the message of `mismatch`, which gets the number of placeholders,
/// unless there is one for each item.
pub(super) fn expand<T>(
    tokens: Vec<u32>,
    placeholder: u32,
    items: &[T],
    mismatch: impl FnOnce(usize) -> String,
    tokens_of: impl Fn(&T) -> Result<Vec<u32>>,
) -> Result<Vec<u32>> {
    let places = tokens.iter().filter(|token| **token == placeholder).count();
    if places != items.len() {
        return Err(Error::request("messages", mismatch(places)));
    }
    let mut items = items.iter();
    let mut expanded = Vec::with_capacity(tokens.len());
    for token in tokens {
        match (token == placeholder).then(|| items.next()).flatten() {
            Some(item) => expanded.extend(tokens_of(item)?),
            None => expanded.push(token),
        }
    }
    Ok(expanded)
}
