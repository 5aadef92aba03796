//! Adapts the source of a template where transformers' Jinja knows more than minijinja.

/// The source as minijinja takes it.
pub(super) fn prepare(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}
