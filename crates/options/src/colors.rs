//! The user's choice of colors on a terminal.

/// Returns false if `NO_COLOR` (no-color.org) or a dumb terminal forbids colors.
pub fn allows_colors() -> bool {
    let disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    !disabled && !dumb
}
