//! Prints two growing texts in two columns, each line once both sides have it. Invariant: returns text and prints nothing.

use mlx_options::Printer;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The minimum terminal width for columns. Narrower terminals get one text below the other.
const MIN_WIDTH: usize = 50;

/// The separator of the columns.
const GAP: &str = " │ ";

const DIFFERENCE_STYLE: &str = "\x1b[33m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// Two growing texts.
pub(super) struct Columns {
    names: [String; 2],
    texts: [String; 2],
    /// Escapes hidden characters of both texts on a terminal. `None` when piped.
    printers: Option<[Printer; 2]>,
    has_ended: [bool; 2],
    /// The width of a column; `None` without columns.
    width: Option<usize>,
    has_colors: bool,
    /// The number of printed lines.
    printed: usize,
}

impl Columns {
    /// Creates the columns for a terminal of this width.
    pub(super) fn new(names: [String; 2], columns: Option<usize>, has_colors: bool) -> Self {
        let width =
            columns.filter(|columns| *columns >= MIN_WIDTH).map(|columns| (columns - 1 - GAP.width()) / 2);
        let printers = columns.map(|_| Default::default());
        Self {
            names,
            texts: Default::default(),
            printers,
            has_ended: [false; 2],
            width,
            has_colors,
            printed: 0,
        }
    }

    pub(super) fn add(&mut self, side: usize, text: &str) {
        match &mut self.printers {
            Some(printers) => self.texts[side].push_str(&printers[side].add(text)),
            None => self.texts[side].push_str(text),
        }
    }

    pub(super) fn end(&mut self, side: usize) {
        if let Some(printers) = &mut self.printers {
            self.texts[side].push_str(&printers[side].finish());
        }
        self.has_ended[side] = true;
    }

    pub(super) fn text(&self, side: usize) -> &str {
        &self.texts[side]
    }

    /// Returns the heading: the names above the columns.
    pub(super) fn heading(&self) -> String {
        let Some(width) = self.width else { return String::new() };
        let [left, right] = self.names.each_ref().map(|name| clipped(name, width));
        let rule = "─".repeat(width);
        format!("{}\n{}\n", row(&left, &right, width), self.styled(DIM, &format!("{rule}─┼─{rule}")))
    }

    /// Returns the new lines that both sides have.
    pub(super) fn ready(&mut self) -> String {
        let Some(width) = self.width else { return String::new() };
        let common = common_length(&self.texts[0], &self.texts[1]);
        let lines = [0, 1].map(|side| wrapped(&self.texts[side], width));
        let complete = |side: usize| {
            if self.has_ended[side] { usize::MAX } else { lines[side].len().saturating_sub(1) }
        };
        let end = complete(0).min(complete(1)).min(lines[0].len().max(lines[1].len()));
        let line = |side: usize, at: usize| match lines[side].get(at) {
            Some((start, text)) => self.highlighted(text, common.saturating_sub(*start), width),
            None => " ".repeat(width),
        };
        let mut rows = String::new();
        for at in self.printed..end {
            rows.push_str(format!("{}{GAP}{}", line(0, at), line(1, at)).trim_end());
            rows.push('\n');
        }
        self.printed = self.printed.max(end);
        rows
    }

    /// Returns the stats below the columns; without columns, also both texts.
    pub(super) fn footer(&self, stats: &[String; 2]) -> String {
        let same = if self.texts[0] == self.texts[1] {
            "the answers are the same".to_owned()
        } else {
            format!("the first {} words are the same", common_words(&self.texts[0], &self.texts[1]))
        };
        if let Some(width) = self.width {
            let stats = row(&stats[0], &stats[1], width);
            return format!("\n{}\n{}\n", self.styled(DIM, &stats), self.styled(DIM, &same));
        }
        let part =
            |at: usize| format!("# {} ({})\n\n{}\n\n", self.names[at], stats[at], self.texts[at].trim_end());
        format!("{}{}{same}\n", part(0), part(1))
    }

    /// Pads a line to the width of the column and colors it after its first `common` bytes.
    fn highlighted(&self, line: &str, common: usize, width: usize) -> String {
        let mut common = common.min(line.len());
        while !line.is_char_boundary(common) {
            common -= 1;
        }
        let spaces = " ".repeat(width.saturating_sub(line.width()));
        format!("{}{}{spaces}", &line[..common], self.styled(DIFFERENCE_STYLE, &line[common..]))
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.has_colors && !text.is_empty() { format!("{style}{text}{RESET}") } else { text.to_owned() }
    }
}

fn row(left: &str, right: &str, width: usize) -> String {
    format!("{left}{}{GAP}{right}", " ".repeat(width.saturating_sub(left.width())))
}

fn clipped(name: &str, width: usize) -> String {
    if name.width() <= width {
        name.to_owned()
    } else {
        name.chars().take(width - 1).chain(['…']).collect()
    }
}

/// Returns the length of the common prefix of two texts in bytes, up to the end of a word.
fn common_length(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|pair| pair.0 == pair.1).count();
    let is_end = |text: &str| text.len() == same || text.as_bytes()[same].is_ascii_whitespace();
    if is_end(one) && is_end(other) {
        return same;
    }
    one.as_bytes()[..same].iter().rposition(u8::is_ascii_whitespace).map_or(0, |at| at + 1)
}

/// Returns the number of leading words that two texts share.
pub(super) fn common_words(one: &str, other: &str) -> usize {
    one.split_whitespace().zip(other.split_whitespace()).take_while(|pair| pair.0 == pair.1).count()
}

/// Wraps a text to the column, each line with its byte offset.
fn wrapped(text: &str, width: usize) -> Vec<(usize, String)> {
    let (mut lines, mut start, mut used, mut space) = (Vec::new(), 0, 0, None);
    for (at, ch) in text.char_indices() {
        if ch == '\n' {
            lines.push((start, text[start..at].to_owned()));
            (start, used, space) = (at + 1, 0, None);
            continue;
        }
        if ch == ' ' {
            space = Some(at);
        }
        let letter_width = ch.width().unwrap_or(0);
        if used + letter_width > width {
            // The line break replaces the space.
            let (end, next) =
                space.filter(|space| *space > start).map_or((at, at), |space| (space, space + 1));
            lines.push((start, text[start..end].to_owned()));
            (start, space) = (next, None);
            used = text.get(next..at).map_or(0, UnicodeWidthStr::width);
            if next > at {
                continue;
            }
        }
        used += letter_width;
    }
    lines.push((start, text[start..].to_owned()));
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn screen_lines(texts: [&str; 2], columns: usize) -> Vec<String> {
        let mut sides = Columns::new(["a".into(), "b".into()], Some(columns), false);
        let mut out = String::new();
        for (side, text) in texts.into_iter().enumerate() {
            for word in text.split_inclusive(' ') {
                sides.add(side, word);
                out.push_str(&sides.ready());
            }
            sides.end(side);
            out.push_str(&sides.ready());
        }
        out.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_is_printed_when_both_sides_have_it() {
        let lines =
            screen_lines(["The sky is blue because of light and air.", "The sky is blue.\n\nWhy? Air."], 53);
        assert_eq!(
            lines,
            [
                "The sky is blue because  │ The sky is blue.",
                "of light and air.        │",
                "                         │ Why? Air.",
            ]
        );
    }

    #[test]
    fn what_differs_is_marked_from_the_first_other_word_on() {
        assert_eq!(common_length("one two three", "one twelve"), 4);
        assert_eq!(common_length("one two", "one two"), 7);
        assert_eq!(common_words("one two three", "one two four"), 2);
        let mut sides = Columns::new(["a".into(), "b".into()], Some(60), true);
        sides.add(0, "one two");
        sides.add(1, "one ten");
        (0..2).for_each(|side| sides.end(side));
        assert!(sides.ready().starts_with("one \x1b[33mtwo\x1b[0m"));
    }

    proptest! {
        #[test]
        fn no_line_is_too_wide_and_no_letter_is_lost(text in "[a-z漢 \n]{0,80}", width in 4..20usize) {
            let lines = wrapped(&text, width);
            prop_assert!(lines.iter().all(|line| line.1.width() <= width));
            let chars = |text: &str| text.chars().filter(|it| !it.is_whitespace()).collect::<String>();
            prop_assert_eq!(lines.iter().map(|line| chars(&line.1)).collect::<String>(), chars(&text));
        }
    }
}
