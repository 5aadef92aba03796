//! Wraps notes to the terminal: words stay whole, and continuation lines are indented to align with their text. Invariant: pure.

use unicode_width::UnicodeWidthStr;

/// Wraps a note to this width where its words allow.
pub(crate) fn wrap_note(text: &str, columns: usize) -> String {
    text.split('\n').map(|line| wrap_line(line, columns)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, columns: usize) -> String {
    if line.width() <= columns {
        return line.to_owned();
    }
    let hang = hang(line, columns);
    let (mut out, mut used) = (String::new(), 0);
    for word in words(line, columns - hang) {
        let width = word.trim_end().width();
        if used + width > columns && used > hang {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(hang));
            used = hang;
            if word == " " {
                continue;
            }
        }
        out.push_str(&word);
        used += word.width();
    }
    out
}

/// Splits a line into words with their trailing space. Code between backticks is one word if it fits, so that a command can be copied.
fn words(line: &str, columns: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in line.split_inclusive(' ') {
        let is_open = |word: &String| word.matches('`').count() % 2 == 1;
        match words
            .last_mut()
            .filter(|last| is_open(last) && last.width() + part.trim_end().width() <= columns)
        {
            Some(open) => open.push_str(part),
            None => words.push(part.to_owned()),
        }
    }
    words
}

/// Returns the indent of continuation lines: below the second column of a list, or below the first word.
fn hang(line: &str, columns: usize) -> usize {
    let indent = line.len() - line.trim_start().len();
    let second = line[indent..].find("  ").map_or(indent, |gap| {
        let after = &line[indent + gap..];
        indent + gap + after.len() - after.trim_start().len()
    });
    if second <= columns / 2 { second } else { indent.min(columns / 2) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_keeps_its_columns() {
        let line = "/think [on|off]  ask the model to think or not to";
        assert_eq!(
            wrap_note(line, 36),
            "/think [on|off]  ask the model to\n                 think or not to"
        );
        assert_eq!(wrap_note("a note of some words", 10), "a note of\nsome words");
        assert_eq!(wrap_note("use `mlx pull a/b` for it", 18), "use `mlx pull a/b`\nfor it");
        assert_eq!(wrap_note("then use `mlx pull a/b` for it", 18), "then use\n`mlx pull a/b` for\nit");
        assert_eq!(wrap_note("short\n\nlines", 10), "short\n\nlines");
        assert_eq!(
            wrap_note("https://a.very.long/address and more", 12),
            "https://a.very.long/address\nand more"
        );
    }

    proptest! {
        #[test]
        fn words_stay_whole_and_in_order(text in "[a-z \n]{0,80}", columns in 8..40usize) {
            let out = wrap_note(&text, columns);
            prop_assert_eq!(out.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
            let fits = |line: &str| line.trim_end().width() <= columns || line.split_whitespace().any(|word| word.len() * 2 > columns);
            prop_assert!(out.lines().all(fits), "{:?}", out);
        }
    }
}
