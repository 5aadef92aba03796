//! Tensor names of a model without its head. transformers saves such a model, for example an embedding model, without the common prefix of
//! its tensor names. Invariant: pure.

use std::collections::BTreeMap;

use super::checkpoint::Entry;

/// Tensors that only such files contain, and the prefix that their names lack.
const HEADLESS_MARKERS: [(&str, &str); 6] = [
    ("embed_tokens.weight", "model."),
    ("tok_embeddings.weight", "model."),
    ("word_embeddings.weight", "model."),
    ("wte.weight", "transformer."),
    ("embeddings.weight", "backbone."),
    ("language_model.embed_tokens.weight", "model."),
];

/// First components of names that lack no prefix.
const COMPLETE: [&str; 3] = ["lm_head", "output", "mtp"];

/// The name of the text model within a larger model.
const TEXT: &str = "language_model.";

/// Returns the prefix that these tensors' names lack, and a test for names that lack it.
pub(super) fn missing_prefix(
    entries: &BTreeMap<String, Entry>,
) -> Option<(&'static str, impl Fn(&str) -> bool + use<>)> {
    let (tells, prefix) = HEADLESS_MARKERS.into_iter().find(|(tells, _)| entries.contains_key(*tells))?;
    let is_nested = tells.starts_with(TEXT);
    let is_complete = move |name: &str| {
        name.starts_with(prefix) || COMPLETE.contains(&name.split('.').next().unwrap_or_default())
    };
    let lacks = move |name: &str| if is_nested { name.starts_with(TEXT) } else { !is_complete(name) };
    Some((prefix, lacks))
}
