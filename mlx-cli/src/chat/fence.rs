//! Multi-line input: a backslash at the end of a line, or three quotes around the text. Invariant: pure.

/// The delimiter of multi-line text.
const FENCE: &str = "\"\"\"";

/// An input without its multi-line markers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// A line, or several joined by backslashes: a message or a command.
    Joined(String),
    /// Text between fences: always a message, used verbatim.
    Fenced(String),
}

/// Returns true if the input needs more lines.
pub(super) fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// Removes the multi-line markers.
pub(super) fn unwrap(text: &str) -> Text {
    match text.trim_start().strip_prefix(FENCE).and_then(|rest| rest.split_once(FENCE)) {
        Some((inside, after)) => Text::Fenced(format!("{}{after}", inside.trim_matches('\n'))),
        None => Text::Joined(text.replace("\\\n", "\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_are_one_input() {
        assert!(is_open("one \\"));
        assert!(is_open("\"\"\"one"));
        assert!(!is_open("\"\"\"one\ntwo\"\"\""));
        assert!(!is_open("plain"));
        assert_eq!(unwrap("one \\\ntwo"), Text::Joined("one \ntwo".into()));
        assert_eq!(unwrap("\"\"\"\n    one\ntwo\n\"\"\""), Text::Fenced("    one\ntwo".into()));
    }
}
