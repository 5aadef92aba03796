//! Renders Markdown on a terminal as it streams: styles text, wraps words, aligns tables, colors code. Text is printed once its meaning is
//! certain, and never reprinted.

mod block;
mod highlight;
mod inline;
mod table;

use std::fmt::Write;

use self::block::{Block, LineStart, start};
use self::highlight::Highlighter;
use self::inline::{Span, TextStyle, take_spans};
use super::style::{DIM, RESET};
use super::wrap::Wrap;

/// The row limit of a table. Larger ones are printed unformatted, since the table may never end.
const MAX_TABLE_ROWS: usize = 200;

/// The marker of a quotation.
const BAR: &str = "│ ";

/// The printer of one answer.
pub(crate) struct Markdown {
    wrap: Wrap,
    /// True if the terminal supports hyperlinks.
    has_links: bool,
    state: State,
    /// The text of the line that is not yet certain.
    pending: String,
    /// The character before it.
    before: Option<char>,
    /// The nesting depth of quotations.
    quotes: usize,
    /// The rows of an open table.
    rows: Vec<String>,
    code: Option<Code>,
    /// True if the line prints nothing, not even its end: table rows are printed later, and closing fences never.
    is_silent: bool,
}

/// The parser's position in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// At the beginning: the kind of the line is unknown.
    LineStart,
    /// In its text, with the style of unmarked text.
    Text(TextStyle),
}

/// An open code block.
struct Code {
    fence: String,
    highlighter: Highlighter,
}

impl Markdown {
    /// Creates a printer for a terminal of this width.
    pub(crate) fn new(columns: usize, has_links: bool) -> Self {
        Self {
            wrap: Wrap::new(columns),
            has_links,
            state: State::LineStart,
            pending: String::new(),
            before: None,
            quotes: 0,
            rows: Vec::new(),
            code: None,
            is_silent: false,
        }
    }

    /// Sets a new terminal width.
    pub(crate) fn resize(&mut self, columns: usize) {
        self.wrap.resize(columns);
    }

    /// Adds a text delta and returns the output that is certain.
    pub(crate) fn add(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut lines = text.split('\n');
        self.pending.push_str(lines.next().unwrap_or_default());
        for next in lines {
            self.print(true, &mut out);
            self.end_line(&mut out);
            self.pending.push_str(next);
        }
        self.print(false, &mut out);
        out
    }

    /// Returns the output that was held back.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.print(true, &mut out);
        if !self.rows.is_empty() {
            let lines = self.table_lines();
            out.push_str(&lines.join("\n"));
        }
        out
    }

    /// Prints the certain part of the pending text; all of it if the line `ends` here.
    fn print(&mut self, ends: bool, out: &mut String) {
        if self.code.is_some() {
            return self.print_code(ends, out);
        }
        while self.state == State::LineStart {
            match start(&self.pending, ends) {
                LineStart::Incomplete => return,
                LineStart::Quote(length) => {
                    self.end_table(out);
                    self.pending.drain(..length);
                    self.quotes += 1;
                    self.show(&format!("{DIM}{BAR}{RESET}"), out);
                    self.hang(0);
                    // A quotation may be empty.
                    if self.pending.is_empty() {
                        return;
                    }
                }
                LineStart::Block(block, length) => {
                    if block != Block::Row {
                        self.end_table(out);
                    }
                    if !self.begin(block, length, out) {
                        return;
                    }
                }
            }
        }
        let State::Text(text_style) = self.state.clone() else { return };
        for span in take_spans(&mut self.pending, &mut self.before, &text_style, ends) {
            self.show_span(&span, out);
        }
    }

    /// Begins the text of a line; returns false if the whole line was printed.
    fn begin(&mut self, block: Block, length: usize, out: &mut String) -> bool {
        let mut text_style = TextStyle::default();
        match block {
            Block::Text => {
                let indent = self.pending.len() - self.pending.trim_start_matches(' ').len();
                self.hang(indent.min(self.wrap.columns() / 2));
            }
            Block::Heading(_) => text_style.bold = true,
            Block::Item(mark) => {
                self.pending.drain(..length);
                self.show(&mark, out);
                self.hang(mark.chars().count().min(self.wrap.columns() / 2));
                self.state = State::Text(text_style);
                return true;
            }
            Block::Rule => {
                self.pending.clear();
                let rule = "─".repeat(self.wrap.columns().min(40) - BAR.chars().count() * self.quotes);
                self.show(&format!("{DIM}{rule}{RESET}"), out);
                return false;
            }
            Block::Fence(fence, language) => {
                self.pending.clear();
                self.show(
                    &format!("{DIM}{}{RESET}", if language.is_empty() { "code" } else { &language }),
                    out,
                );
                self.code = Some(Code { fence, highlighter: Highlighter::new(&language) });
                return false;
            }
            Block::Row if self.quotes > 0 => {}
            Block::Row => {
                self.is_silent = true;
                self.rows.push(std::mem::take(&mut self.pending));
                if self.rows.len() > MAX_TABLE_ROWS {
                    self.end_table(out);
                }
                return false;
            }
        }
        self.pending.drain(..length);
        self.state = State::Text(text_style);
        true
    }

    /// Prints code line by line, since the colors of a line depend on all of it.
    fn print_code(&mut self, ends: bool, out: &mut String) {
        let Some(code) = self.code.as_mut().filter(|_| ends) else { return };
        let line = std::mem::take(&mut self.pending);
        let closes = line.trim().starts_with(&code.fence)
            && line.trim().trim_start_matches(&code.fence[..1]).is_empty();
        if closes {
            self.code = None;
            self.is_silent = true;
            return;
        }
        let painted = code.highlighter.line(&line);
        // Lines of code are not wrapped, so that they can be copied.
        out.push_str(&painted);
    }

    fn end_line(&mut self, out: &mut String) {
        (self.state, self.before, self.quotes) = (State::LineStart, None, 0);
        self.wrap.hang("");
        if !std::mem::take(&mut self.is_silent) {
            self.wrap.end_line(out);
        }
    }

    /// Prints the table that ended before this line, if any.
    fn end_table(&mut self, out: &mut String) {
        for line in self.table_lines() {
            out.push_str(&line);
            out.push('\n');
        }
    }

    /// Returns the collected rows as a table, or unchanged if they form none.
    fn table_lines(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.rows);
        table::lines(&rows, self.wrap.columns()).unwrap_or(rows)
    }

    /// Indents wrapped lines by the quotation markers and this many spaces.
    fn hang(&mut self, spaces: usize) {
        let bars = format!("{DIM}{BAR}{RESET}").repeat(self.quotes);
        self.wrap.hang(&format!("{bars}{}", " ".repeat(spaces)));
    }

    fn show_span(&mut self, span: &Span, out: &mut String) {
        let style = sgr(&span.style);
        let end = if style.is_empty() { "" } else { RESET };
        let address = span.style.link.as_deref().filter(|address| *address != span.text);
        let text = match (&span.style.link, address) {
            (Some(address), _) if self.has_links && is_web(address) => {
                format!("\x1b]8;;{address}\x1b\\{style}{}{end}\x1b]8;;\x1b\\", span.text)
            }
            (_, Some(address)) => format!("{style}{}{end} ({address})", span.text),
            _ => format!("{style}{}{end}", span.text),
        };
        self.show(&text, out);
    }

    fn show(&mut self, text: &str, out: &mut String) {
        // Writing to a string cannot fail.
        write!(out, "{}", self.wrap.wrap(text)).ok();
    }
}

/// Returns true for an http or https address. Other schemes, such as `file:`, could open files or start installed programs.
fn is_web(address: &str) -> bool {
    let is =
        |scheme: &str| address.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    is("http://") || is("https://")
}

/// Returns the escape sequence of a style.
fn sgr(text_style: &TextStyle) -> String {
    let codes = [
        (text_style.bold, "1"),
        (text_style.italic, "3"),
        (text_style.strike, "9"),
        (text_style.code, "33"),
        (text_style.link.is_some(), "4"),
    ];
    let codes: Vec<&str> = codes.iter().filter(|it| it.0).map(|it| it.1).collect();
    if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
}

#[cfg(test)]
mod tests;
