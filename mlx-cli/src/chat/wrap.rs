//! Words of a streamed text stay whole at the edge of a terminal. A letter is printed as it comes; a word that reaches the edge moves to the
//! next line. Invariant: only line breaks and the means to move a word are added.

use std::fmt::Write;
use std::str::Chars;

/// Letters from here on are counted as two columns wide; a few narrow ones are among them.
const WIDE: u32 = 0x1100;

/// Follows what was printed of one answer.
pub(super) struct Wrap {
    /// The last column stays free, where terminals differ.
    columns: usize,
    column: usize,
    /// What was printed of the word at the end, with its colors.
    word: String,
    width: usize,
    /// The beginning of the line as it came, up to three letters.
    line: String,
    /// Between fences a line stays a line, so that it can be copied.
    is_code: bool,
}

impl Wrap {
    /// For an answer that begins at the left edge of a terminal.
    pub(super) fn new(columns: usize) -> Self {
        let columns = columns.saturating_sub(1).max(10);
        Self { columns, column: 0, word: String::new(), width: 0, line: String::new(), is_code: false }
    }

    /// The same text, with words moved that reach the edge.
    pub(super) fn wrap(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\x1b' => {
                    // A color ends with its letter.
                    let color = format!("{letter}{}", sequence(&mut letters));
                    out.push_str(&color);
                    self.word.push_str(&color);
                }
                '\n' => self.end_line(&mut out),
                _ => self.put(letter, &mut out),
            }
        }
        out
    }

    fn end_line(&mut self, out: &mut String) {
        if self.line == "```" {
            self.is_code = !self.is_code;
        }
        self.line.clear();
        self.start_line(out);
        self.end_word();
    }

    fn start_line(&mut self, out: &mut String) {
        out.push('\n');
        self.column = 0;
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.width = 0;
    }

    fn put(&mut self, letter: char, out: &mut String) {
        if self.line.len() < 3 && !(self.line.is_empty() && letter == ' ') {
            self.line.push(letter);
        }
        let width = if u32::from(letter) < WIDE { 1 } else { 2 };
        let is_full = !self.is_code && self.column + width > self.columns;
        if letter == ' ' {
            // The line break stands for the space.
            if is_full {
                self.start_line(out);
            } else {
                out.push(letter);
                self.column += 1;
            }
            return self.end_word();
        }
        if is_full {
            self.move_word(out);
        }
        out.push(letter);
        self.word.push(letter);
        self.column += width;
        self.width += width;
    }

    /// Moves the word at the end to the next line, or breaks one that is as long as a line.
    fn move_word(&mut self, out: &mut String) {
        if self.width == self.column {
            self.start_line(out);
            return self.end_word();
        }
        if self.width > 0 {
            // Writing to a text cannot fail.
            write!(out, "\x1b[{}D\x1b[K", self.width).ok();
        }
        self.start_line(out);
        out.push_str(&self.word);
        self.column = self.width;
    }
}

/// The rest of a control sequence, which ends with a letter.
fn sequence(letters: &mut Chars) -> String {
    let mut rest = String::new();
    for letter in letters {
        rest.push(letter);
        if letter.is_ascii_alphabetic() {
            break;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines that a terminal would show.
    fn shown(out: &str) -> Vec<String> {
        let mut lines = vec![Vec::<char>::new()];
        let mut letters = out.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\n' => lines.push(Vec::new()),
                '\x1b' => {
                    let sequence = sequence(&mut letters);
                    if let Some(count) = sequence.strip_prefix('[').and_then(|it| it.strip_suffix('D')) {
                        let line = lines.last_mut().expect("one");
                        let kept = line.len() - count.parse::<usize>().expect("a number");
                        line.truncate(kept);
                    }
                }
                _ => lines.last_mut().expect("one").push(letter),
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
        assert_eq!(shown(&out), ["The tide turns twice", "a day, slowly and", "well."]);
        assert!(out.contains("\x1b[1mslow"), "{out:?}");
    }

    #[test]
    fn code_stays_on_its_lines() {
        let code = "```\nlet number = a + b + c + d + e + f + g;\n```\nfive or more words here again";
        let lines = shown(&Wrap::new(21).wrap(code));
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
            prop_assert_eq!(shown(&Wrap::new(columns).wrap(&text)), shown(&out));
            let lines = shown(&out);
            prop_assert!(lines.iter().all(|line| line.chars().count() < columns));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            if words(&text).iter().all(|word| word.len() < columns) {
                prop_assert_eq!(lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>(), words(&text));
            }
        }
    }
}
