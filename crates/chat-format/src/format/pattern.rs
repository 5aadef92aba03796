//! Markers as bytes, for searching. A special token has no text, so it is encoded as bytes that never occur in text.
//! Text and special tokens can then be searched in the same way.

use crate::text::Tokenizer;

/// The first byte of an encoded special token.
pub(crate) const SPECIAL: u8 = 0xff;
/// The number of bytes of an encoded special token.
pub(crate) const SPECIAL_BYTES: usize = 5;

/// Encodes a special token. The bytes after the first one never begin a character.
pub(crate) fn special_bytes(token: u32) -> [u8; SPECIAL_BYTES] {
    let digit = |place: u32| 0x80 | (token >> (6 * place) & 0x3f) as u8;
    [SPECIAL, digit(0), digit(1), digit(2), digit(3)]
}

/// Bytes to search for. Never empty.
pub(crate) type Pattern = Box<[u8]>;

/// A sequence of patterns, with optional whitespace between them.
pub(crate) type Literal = Vec<Pattern>;

/// An item of a literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Special(u32),
}

/// Returns the items of a pattern.
pub(crate) fn pieces_of(pattern: &[u8]) -> Vec<Piece> {
    let (mut pieces, mut rest) = (Vec::new(), pattern);
    while let Some(&first) = rest.first() {
        let end = if first == SPECIAL {
            let digits = &rest[1..SPECIAL_BYTES];
            let token = digits.iter().rev().fold(0, |token, digit| token << 6 | u32::from(digit & 0x3f));
            pieces.push(Piece::Special(token));
            SPECIAL_BYTES
        } else {
            let end = rest.iter().position(|byte| *byte == SPECIAL).unwrap_or(rest.len());
            pieces.push(Piece::Text(String::from_utf8_lossy(&rest[..end]).into_owned()));
            end
        };
        rest = &rest[end..];
    }
    pieces
}

/// Returns the Lark notation of an item.
pub(super) fn in_grammar(piece: &Piece) -> String {
    match piece {
        Piece::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        Piece::Special(token) => format!("<[{token}]>"),
    }
}

/// Compiles literals for a vocabulary, or for text in which special tokens are spelled out.
#[derive(Debug)]
pub(super) struct Compiler<'a> {
    vocabulary: Option<&'a Tokenizer>,
    /// The special tokens that were found.
    pub(super) specials: Vec<u32>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(vocabulary: Option<&'a Tokenizer>) -> Self {
        Self { vocabulary, specials: Vec::new() }
    }

    pub(super) fn literal(&mut self, text: &str) -> Literal {
        text.split_ascii_whitespace().map(|word| self.pattern(word)).collect()
    }

    pub(super) fn pattern(&mut self, word: &str) -> Pattern {
        let mut bytes = Vec::new();
        for piece in self.pieces(word) {
            match piece {
                Piece::Text(text) => bytes.extend(text.into_bytes()),
                Piece::Special(token) => bytes.extend(special_bytes(token)),
            }
        }
        bytes.into()
    }

    /// Splits a text into special tokens and the texts between them.
    pub(super) fn pieces(&mut self, text: &str) -> Vec<Piece> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.chars().next() {
            let length = if let Some((token, length)) = self.special(rest) {
                self.specials.push(token);
                pieces.push(Piece::Special(token));
                length
            } else {
                match pieces.last_mut() {
                    Some(Piece::Text(text)) => text.push(first),
                    _ => pieces.push(Piece::Text(first.to_string())),
                }
                first.len_utf8()
            };
            rest = &rest[length..];
        }
        pieces
    }

    /// Returns the longest special token at the beginning of the text.
    fn special(&self, text: &str) -> Option<(u32, usize)> {
        let vocabulary = self.vocabulary?;
        let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8()).rev();
        let id = |end: usize| vocabulary.id(&text[..end]).filter(|id| vocabulary.is_special(*id));
        ends.into_iter().find_map(|end| Some((id(end)?, end)))
    }
}
