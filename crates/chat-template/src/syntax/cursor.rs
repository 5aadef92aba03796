//! A cursor over the tokens of a template.

use super::super::fault::{Fault, Outcome, invalid};
use super::ast::Takes;
use super::token::{Kind, Token};

/// The maximum nesting of brackets and blocks.
const MAX_DEPTH: usize = 100;

/// A position in the tokens of a template.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// The special names that each open macro uses.
    pub(super) macros: Vec<Takes>,
}

impl Cursor {
    /// Creates a cursor. The last of `tokens` must be [`Kind::End`].
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0, macros: Vec::new() }
    }

    pub(super) fn peek(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    pub(super) fn peek_second(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// Consumes and returns the next token. [`Kind::End`] is never consumed.
    pub(super) fn next(&mut self) -> Kind {
        if self.at + 1 == self.tokens.len() {
            return Kind::End;
        }
        self.at += 1;
        std::mem::replace(&mut self.tokens[self.at - 1].kind, Kind::End)
    }

    /// Consumes an operator if it is next.
    pub(super) fn skip(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.next();
        }
        found
    }

    /// Consumes a keyword if it is next.
    pub(super) fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Kind::Operator(found) if *found == operator)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Kind::Name(found) if found == word)
    }

    pub(super) fn expect(&mut self, operator: &str) -> Outcome<()> {
        if self.skip(operator) { Ok(()) } else { Err(self.unexpected(&format!("\"{operator}\""))) }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Outcome<()> {
        if self.skip_word(word) { Ok(()) } else { Err(self.unexpected(&format!("\"{word}\""))) }
    }

    pub(super) fn expect_name(&mut self) -> Outcome<String> {
        match self.peek() {
            Kind::Name(_) => match self.next() {
                Kind::Name(name) => Ok(name),
                _ => Ok(String::new()),
            },
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Consumes the end of a `{% %}` tag.
    pub(super) fn expect_block_end(&mut self) -> Outcome<()> {
        if *self.peek() != Kind::BlockEnd {
            return Err(self.unexpected("%}"));
        }
        self.next();
        Ok(())
    }

    pub(super) fn unexpected(&self, expected: &str) -> Fault {
        invalid(format!("syntax error: expected {expected}, found {}", self.peek()))
    }

    /// Parses one more level of brackets or blocks.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::limit(format!("nests more than {MAX_DEPTH} brackets and blocks")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}
