//! Text styles of the terminal. Invariant: pure.

/// An escape sequence that starts a style; `""` is plain.
pub(super) type Style = &'static str;

/// The style of secondary text.
pub(super) const DIM: Style = "\x1b[2m";
/// Ends a style.
pub(super) const RESET: &str = "\x1b[0m";
/// Returns `text` in one style.
pub(super) fn styled(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{RESET}") }
}
