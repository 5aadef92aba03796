//! Colors for lines of code in any language: strings, numbers, comments, and words that are keywords in most.

use super::style::styled;

const KEYWORD: &str = "\x1b[35m";
const STRING: &str = "\x1b[32m";
const NUMBER: &str = "\x1b[36m";
const COMMENT: &str = "\x1b[2m";

const KEYWORDS: [&str; 64] = [
    "and",
    "as",
    "async",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "def",
    "default",
    "do",
    "elif",
    "else",
    "end",
    "enum",
    "except",
    "export",
    "extends",
    "false",
    "False",
    "final",
    "finally",
    "fn",
    "for",
    "from",
    "func",
    "function",
    "if",
    "impl",
    "import",
    "in",
    "interface",
    "is",
    "lambda",
    "let",
    "loop",
    "match",
    "mod",
    "mut",
    "new",
    "nil",
    "None",
    "not",
    "null",
    "or",
    "pass",
    "private",
    "pub",
    "public",
    "raise",
    "return",
    "self",
    "static",
    "struct",
    "switch",
    "then",
    "trait",
    "true",
    "True",
    "try",
    "use",
    "while",
];

/// Paints code as it streams; a word is held back until it is whole.
#[derive(Default)]
pub(super) struct Code {
    held: String,
    state: State,
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Plain,
    /// Until this quotation mark; whether a backslash came before.
    Text(char, bool),
    /// Until the end of the line.
    Comment,
}

impl Code {
    /// The next character of a line, painted as far as it is certain how.
    pub(super) fn push(&mut self, character: char) -> String {
        match self.state {
            State::Comment => self.held.push(character),
            State::Text(quote, escaped) => {
                self.held.push(character);
                if character == quote && !escaped {
                    return self.flush();
                }
                self.state = State::Text(quote, character == '\\' && !escaped);
            }
            State::Plain if character.is_alphanumeric() || character == '_' => {
                if self.held == "/" {
                    let slash = self.flush();
                    self.held.push(character);
                    return slash;
                }
                self.held.push(character);
            }
            State::Plain => return self.end_word(character),
        }
        String::new()
    }

    /// A character that belongs to no word.
    fn end_word(&mut self, character: char) -> String {
        if character == '/' && self.held == "/" {
            self.held.push(character);
            self.state = State::Comment;
            return String::new();
        }
        let before = self.flush();
        match character {
            '"' | '\'' => self.state = State::Text(character, false),
            '#' => self.state = State::Comment,
            '/' => {}
            other => return before + &other.to_string(),
        }
        self.held.push(character);
        before
    }

    /// What is held back, at the end of a line.
    pub(super) fn flush(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let style = match std::mem::take(&mut self.state) {
            State::Comment => COMMENT,
            State::Text(..) => STRING,
            State::Plain if KEYWORDS.contains(&held.as_str()) => KEYWORD,
            State::Plain if held.starts_with(|first: char| first.is_ascii_digit()) => NUMBER,
            State::Plain => return held,
        };
        styled(style, &held)
    }
}
