//! The styles of text in a terminal. Invariant: pure.

/// How the terminal shows a stretch of text; `""` is plain.
pub(super) type Style = &'static str;

/// What is beside the text.
pub(super) const DIM: Style = "\x1b[2m";
/// Ends a style.
pub(super) const RESET: &str = "\x1b[0m";
/// `text` in one style.
pub(super) fn styled(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{RESET}") }
}
