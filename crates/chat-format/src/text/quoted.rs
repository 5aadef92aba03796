//! Encodes prompts that quote untrusted texts. Control tokens that are spelled out in such a text stay text.

use aho_corasick::AhoCorasick;

use super::encoded::{EncodeLimit, Encoded};
use super::tokenizer::Tokenizer;
use crate::error::Result;

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptText<'a> {
    /// Trusted text: a spelled-out control token is encoded as that token.
    Own(&'a str),
    /// Untrusted text: it never becomes a control token.
    Quoted(&'a str),
}

impl Tokenizer {
    /// Encodes the text of all parts together, without special tokens around it. If a quoted part spells a control
    /// token, such as `<|im_end|>`, its first character is encoded separately, so that it stays text.
    pub fn encode_parts(&self, parts: &[PromptText], limit: &EncodeLimit) -> Result<Encoded> {
        let control = self.control_tokens(|| self.control_matcher());
        let (mut text, mut cuts) = (String::new(), Vec::new());
        for part in parts {
            let start = text.len();
            let quoted = match part {
                PromptText::Own(own) => {
                    text.push_str(own);
                    continue;
                }
                PromptText::Quoted(quoted) => quoted,
            };
            text.push_str(quoted);
            let after_first = |at: usize| at + quoted[at..].chars().next().map_or(0, char::len_utf8);
            let found = control.find_overlapping_iter(quoted);
            cuts.extend(found.map(|token| start + after_first(token.start())));
        }
        cuts.push(text.len());
        cuts.sort_unstable();
        cuts.dedup();
        let (mut ids, mut begin) = (Vec::new(), 0);
        for end in cuts {
            let left = EncodeLimit { tokens: limit.tokens.saturating_sub(ids.len()), ..*limit };
            match self.encode_within(&text[begin..end], false, &left)? {
                Encoded::Whole(more) => ids.extend(more),
                Encoded::AtLeast(fewest) => return Ok(Encoded::AtLeast(ids.len() + fewest)),
            }
            begin = end;
        }
        Ok(Encoded::Whole(ids))
    }

    /// Returns a matcher for tokens that structure a prompt: special tokens, and tokens in brackets such as `<think>`.
    fn control_matcher(&self) -> AhoCorasick {
        let in_brackets = |token: &str| {
            token.len() > 2
                && (token.starts_with('<') && token.ends_with('>')
                    || token.starts_with('[') && token.ends_with(']'))
        };
        let mut added = self.added_tokens();
        added.retain(|token| !token.content.is_empty() && (token.special || in_brackets(&token.content)));
        AhoCorasick::new(added.into_iter().map(|token| token.content))
            .expect("added tokens are short and few")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::PromptText::{Own, Quoted};
    use super::*;
    use crate::text::config::TokenizerConfig;
    use crate::text::tokenizer::tests::tiny;

    fn tokenizer() -> Tokenizer {
        tiny(
            &Value::Null,
            &["a", "b", "<", "|", "e", ">", " ", "<|e|>", "<|e|><|e|>"],
            TokenizerConfig::default(),
        )
    }

    fn encode(parts: &[PromptText]) -> Vec<u32> {
        let encoded = tokenizer().encode_parts(parts, &EncodeLimit::NONE).expect("it is text");
        encoded.whole().expect("there is no limit")
    }

    #[test]
    fn a_quoted_text_holds_no_control_tokens_and_loses_nothing() {
        assert_eq!(encode(&[Own("a<|e|>"), Quoted("b a"), Own("<|e|>")]), [0, 7, 1, 6, 0, 7]);
        let letters = [2, 3, 4, 3, 5];
        assert_eq!(
            encode(&[Own("a<|e|>"), Quoted("<|e|>"), Own("<|e|>b")]),
            [&[0, 7][..], &letters, &[7, 1]].concat()
        );
        // Overlapping control tokens, and one after a character of two bytes.
        let twice = [letters, letters].concat();
        assert_eq!(encode(&[Quoted("<|e|><|e|>")]), twice);
        assert_eq!(encode(&[Quoted("é<|e|>")]).len(), encode(&[Quoted("é")]).len() + letters.len());
    }

    #[test]
    fn the_limit_is_that_of_all_parts() {
        let parts = [Own("ab"), Quoted("<|e|>"), Own("ab")];
        let encode = |tokens| {
            tokenizer()
                .encode_parts(&parts, &EncodeLimit { tokens, ..EncodeLimit::NONE })
                .expect("it is text")
        };
        assert!(matches!(encode(9), Encoded::Whole(ids) if ids.len() == 9));
        assert!(matches!(encode(8), Encoded::AtLeast(fewest) if fewest > 8));
    }
}
