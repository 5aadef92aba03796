//! The matcher of one sequence: its state in the grammar, and the tokens that may come next.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;

use llguidance::TokenParser;
use llguidance::panic_utils::catch_unwind;

use crate::sampling::TokenMask;

/// The maximum size of a matcher's tables. A sequence that exceeds it ends with an error.
pub(in crate::engine) const MATCHER_BYTES: usize = 32 << 20;

/// The maximum length of an error in bytes, since it may quote the grammar.
const LONGEST_ERROR: usize = 200;

/// A state in a grammar. Every method except [`Matcher::is_done`] can fail, which ends the sequence.
pub(super) struct Matcher(TokenParser);

impl Matcher {
    /// Creates a matcher at the start of a compiled grammar.
    pub(super) fn new(mut parser: TokenParser) -> Self {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        Self(parser)
    }

    /// Returns an independent copy: the work of one does not affect the other.
    pub(super) fn copy(&self) -> Self {
        Self(self.0.deep_clone())
    }

    /// Consumes tokens that the previous masks allowed.
    pub(super) fn consume(&mut self, tokens: &[u32]) -> Result<(), String> {
        self.guarded(|parser| {
            for &token in tokens {
                parser.consume_token(token)?;
            }
            parser.check_stop().map(drop)
        })
    }

    /// Rolls back the last `count` tokens.
    pub(super) fn rollback(&mut self, count: usize) -> Result<(), String> {
        self.guarded(|parser| {
            // The latest mask is cached by the parser's row number, which another text may reach again.
            parser.invalidate_bias_cache();
            parser.rollback(count)
        })
    }

    /// Returns true if these tokens may come next.
    pub(super) fn accepts(&mut self, tokens: &[u32]) -> Result<bool, String> {
        Ok(self.admits(tokens)? == tokens.len())
    }

    /// Returns the number of these tokens that may come next, one after the other.
    pub(super) fn admits(&mut self, tokens: &[u32]) -> Result<usize, String> {
        self.guarded(|parser| parser.validate_tokens_raw(tokens))
    }

    /// Returns the bytes that must come next.
    pub(super) fn forced_bytes(&mut self) -> Result<Vec<u8>, String> {
        self.guarded(|parser| {
            if parser.stopped() {
                return Ok(Vec::new());
            }
            let bytes = parser.force_bytes();
            // The parser has consumed the bytes, but they are not drawn yet.
            parser.parser.rollback(0)?;
            Ok(bytes)
        })
    }

    /// Returns true if the text may end here.
    pub(super) fn is_complete(&mut self) -> Result<bool, String> {
        self.guarded(|parser| Ok(parser.stopped() || parser.is_accepting()))
    }

    /// Returns true if the text must end here.
    pub(super) fn is_done(&self) -> bool {
        self.0.stopped()
    }

    /// Returns the tokens that may come next, including end-of-sequence tokens if the text is complete.
    pub(super) fn mask(&mut self) -> Result<TokenMask, String> {
        let set = self.guarded(|parser| {
            if parser.stopped() {
                return Ok(parser.token_env.tok_trie().eos_token_set());
            }
            parser.compute_mask()
        })?;
        if self.bytes() > MATCHER_BYTES {
            return Err(format!("its tables need more than {} MiB", MATCHER_BYTES >> 20));
        }
        Ok(TokenMask::from_words(set.as_slice(), set.len()))
    }

    /// Returns the bytes of the tables, which grow with the text.
    pub(super) fn bytes(&self) -> usize {
        self.0.parser.lexer_stats().num_bytes
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| work(&mut self.0))).map_err(|error| first_line(&error))
    }
}

/// Returns the first line of an error; the other lines contain the state of the compiler. An error about a regular expression shows the
/// expression first, so its cause is appended.
pub(super) fn first_line(error: &impl Display) -> String {
    let text = error.to_string();
    let mut line = text.lines().next().unwrap_or_default().to_owned();
    if line.ends_with("regex parse error:")
        && let Some(cause) = text.lines().find_map(|line| line.strip_prefix("error: "))
    {
        line = format!("{line} {cause}");
    }
    line.truncate(line.floor_char_boundary(LONGEST_ERROR));
    if line == "NoExtensionBias" { "no text satisfies it".into() } else { line }
}
