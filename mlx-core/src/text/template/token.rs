//! The tokens of a tag. Invariant: pure.

use std::ops::Range;

/// A name, number, string or operator inside a tag.
pub(super) struct Token {
    pub(super) range: Range<usize>,
    /// The depth of brackets around it.
    pub(super) depth: usize,
}

/// Whether a plus after `before` is a sign.
pub(super) fn is_unary(source: &str, before: Option<&Token>) -> bool {
    let Some(token) = before else { return true };
    let text = &source[token.range.clone()];
    let operators = ["and", "or", "not", "in", "is", "if", "else", "elif", "set", "do", "call"];
    operators.contains(&text)
        || text.ends_with(['+', '-', '*', '/', '%', '~', '=', '<', '>', '(', '[', '{', ',', ':'])
}

/// The length of the token at the start of `rest`.
pub(super) fn token_length(rest: &str, letter: char) -> usize {
    let end_of = |part: fn(char) -> bool| rest.find(|letter| !part(letter)).unwrap_or(rest.len());
    if letter == '"' || letter == '\'' {
        let mut escaped = false;
        let end = rest[1..].find(|next| {
            let ends = next == letter && !escaped;
            escaped = next == '\\' && !escaped;
            ends
        });
        end.map_or(rest.len(), |end| end + 2)
    } else if letter.is_alphanumeric() || letter == '_' {
        end_of(|letter| letter.is_alphanumeric() || letter == '_')
    } else {
        letter.len_utf8()
    }
}
