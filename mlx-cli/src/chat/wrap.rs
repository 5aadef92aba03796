//! Word wrap for streamed text. Characters are printed as they come; a word that reaches the edge of the terminal moves to the next line.
//! Invariant: adds only line breaks and the control sequences that move a word.

use std::fmt::Write;
use std::str::Chars;

use unicode_width::UnicodeWidthChar;

use super::style::RESET;

/// Tracks the printed text of one answer.
pub(super) struct Wrap {
    /// Usable columns. The last one stays empty, since terminals differ in how they wrap there.
    columns: usize,
    column: usize,
    /// The printed part of the last word, with its colors.
    word: String,
    width: usize,
    /// The active colors, and those at the start of the word.
    style: String,
    word_style: String,
    /// The prefix of wrapped lines, and its width.
    hang: String,
    hang_width: usize,
    /// The first characters of the line, up to three.
    line: String,
    /// True in a code block. Its lines are not wrapped, so that they can be copied.
    is_code: bool,
}

impl Wrap {
    /// Creates a wrapper for an answer that begins at the left edge of a terminal.
    pub(super) fn new(columns: usize) -> Self {
        let mut wrap = Self {
            columns: 0,
            column: 0,
            word: String::new(),
            width: 0,
            style: String::new(),
            word_style: String::new(),
            hang: String::new(),
            hang_width: 0,
            line: String::new(),
            is_code: false,
        };
        wrap.resize(columns);
        wrap
    }

    /// Sets a new terminal width.
    pub(super) fn resize(&mut self, columns: usize) {
        self.columns = columns.saturating_sub(1).max(10);
    }

    /// Returns the usable columns.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Sets the prefix of wrapped lines. It may contain colors and is limited to half of the columns.
    pub(super) fn hang(&mut self, text: &str) {
        let mut chars = text.chars();
        let mut width = 0;
        while let Some(ch) = chars.next() {
            if ch == '\x1b' {
                sequence(&mut chars);
            } else {
                width += ch.width().unwrap_or(0);
            }
        }
        let fits = width <= self.columns / 2;
        self.hang = if fits { text.to_owned() } else { String::new() };
        self.hang_width = if fits { width } else { 0 };
    }

    /// Wraps a text delta: words that reach the edge move to the next line.
    pub(super) fn wrap(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(ch) = chars.next() {
            match ch {
                '\x1b' => {
                    let control = format!("{ch}{}", sequence(&mut chars));
                    self.follow_style(&control);
                    out.push_str(&control);
                    self.word.push_str(&control);
                }
                '\n' => self.end_line(&mut out),
                _ => self.put(ch, &mut out),
            }
        }
        out
    }

    /// Ends a line of the text.
    pub(super) fn end_line(&mut self, out: &mut String) {
        if self.line == "```" {
            self.is_code = !self.is_code;
        }
        self.line.clear();
        out.push('\n');
        self.column = 0;
        self.end_word();
    }

    fn follow_style(&mut self, control: &str) {
        if control == RESET {
            self.style.clear();
        } else if control.ends_with('m') {
            self.style.push_str(control);
        }
    }

    /// Begins a wrapped line.
    fn start_line(&mut self, style: &str, out: &mut String) {
        out.push('\n');
        if !self.hang.is_empty() {
            let reset = if style.is_empty() { "" } else { RESET };
            // Writing to a string cannot fail.
            write!(out, "{reset}{}{style}", self.hang).ok();
        }
        self.column = self.hang_width;
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.width = 0;
        self.word_style.clone_from(&self.style);
    }

    fn put(&mut self, ch: char, out: &mut String) {
        if self.line.len() < 3 && !(self.line.is_empty() && ch == ' ') {
            self.line.push(ch);
        }
        let width = ch.width().unwrap_or(0);
        let is_full = !self.is_code && self.column + width > self.columns;
        if ch == ' ' {
            // The line break replaces the space.
            if is_full {
                self.start_line(&self.style.clone(), out);
            } else {
                out.push(ch);
                self.column += 1;
            }
            return self.end_word();
        }
        if is_full {
            self.move_word(out);
        }
        out.push(ch);
        self.word.push(ch);
        self.column += width;
        self.width += width;
    }

    /// Moves the last word to the next line, or breaks it if it is as long as a line.
    fn move_word(&mut self, out: &mut String) {
        if self.width + self.hang_width >= self.column {
            self.start_line(&self.style.clone(), out);
            return self.end_word();
        }
        if self.width > 0 {
            // Writing to a string cannot fail.
            write!(out, "\x1b[{}D\x1b[K", self.width).ok();
        }
        self.start_line(&self.word_style.clone(), out);
        out.push_str(&self.word);
        self.column += self.width;
    }
}

/// Reads the remainder of a control sequence. It ends with a letter; an operating system command (such as a link) ends with a bell or a backslash.
fn sequence(chars: &mut Chars) -> String {
    let mut rest = String::new();
    let is_command = chars.as_str().starts_with(']');
    for ch in chars {
        rest.push(ch);
        if (is_command && matches!(ch, '\x07' | '\\')) || (!is_command && ch.is_ascii_alphabetic()) {
            break;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the lines that a terminal would show.
    fn screen_lines(out: &str) -> Vec<String> {
        let mut lines = vec![Vec::<char>::new()];
        let mut chars = out.chars();
        while let Some(ch) = chars.next() {
            match ch {
                '\n' => lines.push(Vec::new()),
                '\x1b' => {
                    let sequence = sequence(&mut chars);
                    if let Some(count) = sequence.strip_prefix('[').and_then(|it| it.strip_suffix('D')) {
                        let line = lines.last_mut().expect("one");
                        let kept = line.len() - count.parse::<usize>().expect("a number");
                        line.truncate(kept);
                    }
                }
                _ => lines.last_mut().expect("one").push(ch),
            }
        }
        let line = |line: Vec<char>| line.into_iter().collect::<String>().trim_end().to_owned();
        lines.into_iter().map(line).collect()
    }

    #[test]
    fn a_word_that_reaches_the_edge_moves_whole() {
        let mut wrap = Wrap::new(21);
        let out: String = ["The tide turns twice", " a da", "y, \x1b[1mslow", "ly and well\x1b[0m", "."]
            .map(|piece| wrap.wrap(piece))
            .concat();
        assert_eq!(screen_lines(&out), ["The tide turns twice", "a day, slowly and", "well."]);
        assert!(out.contains("\x1b[1mslow"), "{out:?}");
    }

    #[test]
    fn code_stays_on_its_lines() {
        let code = "```\nlet number = a + b + c + d + e + f + g;\n```\nfive or more words here again";
        let lines = screen_lines(&Wrap::new(21).wrap(code));
        assert_eq!(lines[1], "let number = a + b + c + d + e + f + g;");
        assert_eq!(lines[3..], ["five or more words", "here again"]);
    }

    proptest! {
        #[test]
        fn lines_fit_and_words_stay_whole_however_the_text_is_cut(
            pieces in prop::collection::vec("[ab \n]{0,9}", 0..20),
            columns in 11..30usize,
        ) {
            let mut wrap = Wrap::new(columns);
            let out: String = pieces.iter().map(|piece| wrap.wrap(piece)).collect();
            let text = pieces.concat();
            prop_assert_eq!(screen_lines(&Wrap::new(columns).wrap(&text)), screen_lines(&out));
            let lines = screen_lines(&out);
            prop_assert!(lines.iter().all(|line| line.chars().count() < columns));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            if words(&text).iter().all(|word| word.len() < columns) {
                prop_assert_eq!(lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>(), words(&text));
            }
        }
    }
}
