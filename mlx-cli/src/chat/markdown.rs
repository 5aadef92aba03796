//! Markdown in color as it streams. Invariant: no character is left out, added or moved; only colors come between them.

use std::fmt::Write;

use super::code::Code;
use super::style::{RESET, Style};

const HEADING: Style = "\x1b[1;36m";
const BOLD: Style = "\x1b[1m";
const ITALIC: Style = "\x1b[3m";
const BOLD_ITALIC: Style = "\x1b[1;3m";
const INLINE_CODE: Style = "\x1b[33m";
const MARKER: Style = "\x1b[2m";

/// Paints one answer.
#[derive(Default)]
pub(crate) struct Painter {
    out: String,
    style: Style,
    /// Whether nothing but spaces has come since the last line break.
    at_line_start: bool,
    line: Line,
    /// 1 for italic, 2 for bold, 3 for both: as many as there are stars.
    emphasis: u8,
    inline_code: bool,
    /// The lines between fences, while in one.
    code: Option<Code>,
    /// Marks whose meaning the next character decides, all alike.
    run: String,
}

/// What a line is.
#[derive(Default, PartialEq)]
enum Line {
    #[default]
    Text,
    Heading,
    /// It opens or closes lines of code.
    Fence,
}

impl Painter {
    pub(crate) fn new() -> Self {
        Self { at_line_start: true, ..Self::default() }
    }

    /// The next piece of text, painted as far as it is certain how.
    pub(crate) fn paint(&mut self, text: &str) -> String {
        for character in text.chars() {
            self.push(character);
        }
        std::mem::take(&mut self.out)
    }

    /// What is still held back, and the end of all colors.
    pub(crate) fn finish(&mut self) -> String {
        self.end_run(' ');
        if let Some(code) = &mut self.code {
            let rest = code.flush();
            self.out.push_str(&rest);
        }
        self.set("");
        let out = std::mem::take(&mut self.out);
        *self = Self::new();
        out
    }

    fn push(&mut self, character: char) {
        let is_mark = character == '`'
            || character == '*' && self.code.is_none() && !self.inline_code && self.line != Line::Fence;
        if is_mark && self.run.chars().all(|mark| mark == character) {
            self.run.push(character);
            return;
        }
        self.end_run(character);
        if is_mark {
            self.run.push(character);
        } else if character == '\n' {
            self.end_line();
        } else if let Some(code) = self.code.as_mut().filter(|_| self.line != Line::Fence) {
            let painted = code.push(character);
            self.out.push_str(&painted);
            self.at_line_start &= character == ' ';
        } else {
            if self.at_line_start && character == '#' {
                self.line = Line::Heading;
            }
            self.at_line_start &= character == ' ';
            self.put(self.prose(), character);
        }
    }

    /// Decides what the marks mean that `next` comes after.
    fn end_run(&mut self, next: char) {
        let run = std::mem::take(&mut self.run);
        let Some(mark) = run.chars().next() else { return };
        let (count, fence) = (run.len(), mark == '`' && run.len() >= 3 && self.at_line_start);
        if self.code.is_some() && self.line != Line::Fence {
            if fence {
                self.code = None;
                self.line = Line::Fence;
                self.write(MARKER, &run);
            } else if let Some(code) = &mut self.code {
                let painted: String = run.chars().map(|mark| code.push(mark)).collect();
                self.out.push_str(&painted);
            }
        } else if fence {
            self.code = Some(Code::default());
            self.line = Line::Fence;
            self.write(MARKER, &run);
        } else if mark == '`' {
            self.inline_code = !self.inline_code;
            self.write(MARKER, &run);
        } else if count == 1 && self.emphasis & 1 == 0 && next.is_whitespace() || count > 3 {
            // A bullet, a product, a rule.
            self.write(self.prose(), &run);
        } else {
            self.emphasis ^= count as u8;
            self.write(MARKER, &run);
        }
        self.at_line_start = false;
    }

    /// Unclosed marks end with their line.
    fn end_line(&mut self) {
        if let Some(code) = &mut self.code {
            let rest = code.flush();
            self.out.push_str(&rest);
        }
        (self.line, self.emphasis) = (Line::Text, 0);
        (self.inline_code, self.at_line_start) = (false, true);
        self.put("", '\n');
    }

    fn prose(&self) -> Style {
        match (&self.line, self.inline_code, self.emphasis) {
            (Line::Fence, ..) => MARKER,
            (_, true, _) => INLINE_CODE,
            (Line::Heading, ..) => HEADING,
            (Line::Text, _, 3) => BOLD_ITALIC,
            (Line::Text, _, 2) => BOLD,
            (Line::Text, _, 1) => ITALIC,
            _ => "",
        }
    }

    fn put(&mut self, style: Style, character: char) {
        self.set(style);
        self.out.push(character);
    }

    fn write(&mut self, style: Style, text: &str) {
        self.set(style);
        self.out.push_str(text);
    }

    fn set(&mut self, style: Style) {
        if style != self.style {
            let before = if self.style.is_empty() { "" } else { RESET };
            // Writing to a text cannot fail.
            write!(self.out, "{before}{style}").ok();
            self.style = style;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn painted(pieces: &[&str]) -> String {
        let mut painter = Painter::new();
        let mut out: String = pieces.iter().map(|piece| painter.paint(piece)).collect();
        out.push_str(&painter.finish());
        out
    }

    /// What a terminal without colors would show.
    fn bare(text: &str) -> String {
        let mut parts = text.split("\x1b[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |sum, part| sum + part.split_once('m').map_or("", |(_, rest)| rest))
    }

    #[test]
    fn words_are_painted_by_their_marks() {
        assert!(painted(&["a **b", "old** c"]).contains("\x1b[1mbold"));
        assert!(painted(&["# Head\ntext"]).starts_with("\x1b[1;36m# Head"));
        assert!(painted(&["use `ls`", " now"]).contains("\x1b[33mls"));
        assert!(painted(&["```rust\nfn main() {}\n``", "`\nend"]).contains("\x1b[35mfn"));
        assert_eq!(painted(&["* one\n* two\n2 * 3"]), "* one\n* two\n2 * 3");
    }

    proptest! {
        #[test]
        fn only_colors_are_added(pieces in prop::collection::vec("[a#`*\\n \"/0é]{0,6}", 0..12)) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let out = painted(&pieces);
            prop_assert_eq!(bare(&out), pieces.concat());
            prop_assert!(!out.contains('\x1b') || out.trim_end_matches(['\n', ' ']).ends_with('m') || out.contains(RESET));
            // However it is cut.
            let whole = pieces.concat();
            prop_assert_eq!(painted(&[&whole]), out);
        }
    }
}
