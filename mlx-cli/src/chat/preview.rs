//! Shortens a long text to its first lines. Invariant: pure.

/// Lines of a tool result to show.
pub(super) const MAX_LINES: usize = 2;

/// Returns the first lines of a text, clipped to the width of the terminal, and the number of hidden lines.
pub(super) fn text(text: &str, lines: usize, columns: Option<usize>) -> String {
    let width = columns.unwrap_or(100).max(20);
    let clip = |line: &str| match line.char_indices().nth(width) {
        Some(_) => line.chars().take(width - 1).chain(['…']).collect(),
        None => line.to_owned(),
    };
    let all: Vec<&str> = text.trim_end().lines().collect();
    let mut shown: Vec<String> = all.iter().take(lines).map(|line| clip(line)).collect();
    match all.len().saturating_sub(lines) {
        0 => {}
        1 => shown.push("… 1 more line".to_owned()),
        more => shown.push(format!("… {more} more lines")),
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_shown_and_the_others_counted() {
        assert_eq!(text("a\nb\n\n", 2, None), "a\nb");
        assert_eq!(text("a\nb\nc", 2, None), "a\nb\n… 1 more line");
        assert_eq!(text("a\nb\nc\nd", 1, None), "a\n… 3 more lines");
        assert_eq!(text(&"é".repeat(30), 1, Some(20)), format!("{}…", "é".repeat(19)));
        assert_eq!(text("", 2, None), "");
    }
}
