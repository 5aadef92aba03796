//! Decodes tokens one by one. The text equals, byte for byte, the result of decoding all of them at once.

use super::decoder::Chain;
use super::tokenizer::Tokenizer;

/// Decodes a sequence of tokens, and returns text as soon as it is final.
///
/// Invariant: the text returned so far is always a prefix of `decode` of the tokens so far, whatever tokens follow.
/// With [`finish`](Self::finish) it is exactly `decode` of all tokens.
///
/// A character that spans several tokens is therefore held back until it is complete, and U+FFFD is only returned for
/// bytes that no further token can complete. With byte fallback (Llama 2, Gemma), a run of byte tokens such as `<0xE6>`
/// is text only if the whole run is valid; otherwise each byte becomes U+FFFD. The run is held back until a token that
/// is not a byte ends it.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    chain: Chain,
    /// The end of the prompt's text that the chain still holds. It is not part of the output.
    before: String,
}

impl Detokenizer {
    fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let chain = tokenizer.chain().clone();
        Self { tokenizer, skip_special, chain, before: String::new() }
    }

    /// Adds the next token and returns the text that became final, which may be empty. An id outside the vocabulary has
    /// no text.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let text = self.tokenizer.spelling(id).map(|token| self.chain.push(token)).unwrap_or_default();
        self.after_prompt(text)
    }

    /// Returns the remaining text, with U+FFFD for an incomplete character, and resets the detokenizer.
    pub fn finish(&mut self) -> String {
        let rest = self.chain.finish();
        let rest = self.after_prompt(rest);
        self.reset();
        rest
    }

    /// Returns the complete characters that were held back because a later token may replace them. Always empty for a
    /// decoder without output before the end.
    pub fn uncertain(&self) -> String {
        if self.chain.holds_all() {
            return String::new();
        }
        let mut rest = self.clone();
        rest.chain.drop_incomplete();
        rest.finish()
    }

    /// Like [`push`](Self::push), but also returns the start of the token: the number of characters between the text
    /// returned before and its own. A token that continues a character starts where the character does.
    pub fn locate(&mut self, id: u32) -> (usize, String) {
        let held = if self.chain.holds_all() { String::new() } else { self.clone().finish() };
        let complete = self.uncertain();
        let text = self.push(id);
        let has_ended = text.len() > held.len() && text.starts_with(&held);
        (if has_ended { held } else { complete }.chars().count(), text)
    }

    /// Discards all tokens. After a rollback, push the whole history again.
    pub fn reset(&mut self) {
        self.chain = self.tokenizer.chain().clone();
        self.before.clear();
    }

    /// Returns the part of `text` that does not belong to the prompt. A token may change the end of the prompt's text,
    /// such as half a character; then the whole character follows the prompt.
    fn after_prompt(&mut self, text: String) -> String {
        if self.before.is_empty() || text.is_empty() {
            return text;
        }
        let common = text.chars().zip(self.before.chars()).take_while(|(one, other)| one == other);
        let common = common.map(|(letter, _)| letter.len_utf8()).sum();
        if common == text.len() {
            self.before.drain(..common);
        } else {
            self.before.clear();
        }
        text[common..].to_owned()
    }
}

impl Tokenizer {
    /// Decodes `ids`. Ids outside the vocabulary have no text. `skip_special` omits special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = self.detokenizer(skip_special);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Returns a detokenizer that decodes tokens one by one.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special)
    }

    /// Returns a detokenizer for the tokens after `prompt`. Its output is the text that they add, so the first word
    /// keeps its leading space, which sentencepiece drops at the start of a text.
    pub fn detokenizer_after(&self, prompt: &[u32], skip_special: bool) -> Detokenizer {
        let mut detokenizer = self.detokenizer(skip_special);
        for id in prompt {
            detokenizer.push(*id);
        }
        detokenizer.before = detokenizer.chain.clone().finish();
        detokenizer
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::config::TokenizerConfig;
    use super::super::tokenizer::tests::{decode_all, tiny};

    /// Letters, bytes of characters with four, three and two bytes, a stray byte and non-Latin characters.
    const BYTE_LEVEL: [&str; 12] = ["a", "ĠI", "ð", "Ł", "ĺ", "Ģ", "æ¼", "¢", "Ã", "©b", "漢", "<|end|>"];
    const SENTENCE_PIECE: [&str; 12] = [
        "▁a", "b", "▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xC3>", "<0xA9>", "<0x0A>", "##c▁d",
        "<|end|>",
    ];

    fn decoders() -> Vec<(Value, &'static [&'static str])> {
        let space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let (bytes, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let mark =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let sequence = |decoders: &[&Value]| json!({"type": "Sequence", "decoders": decoders});
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        vec![
            (sequence(&[&byte_level, &strip]), &BYTE_LEVEL),
            (byte_level, &BYTE_LEVEL),
            (sequence(&[&space, &bytes, &fuse, &strip]), &SENTENCE_PIECE),
            (sequence(&[&space, &bytes, &fuse]), &SENTENCE_PIECE),
            (sequence(&[&bytes, &mark]), &SENTENCE_PIECE),
            (sequence(&[&bytes, &strip, &fuse, &mark]), &SENTENCE_PIECE),
            (sequence(&[&fuse, &space]), &SENTENCE_PIECE),
            (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), &SENTENCE_PIECE),
            (json!({"type": "BPEDecoder", "suffix": "▁"}), &SENTENCE_PIECE),
            (
                json!({"type": "CTC", "pad_token": "b", "word_delimiter_token": "▁", "cleanup": true}),
                &SENTENCE_PIECE,
            ),
            (Value::Null, &SENTENCE_PIECE),
        ]
    }

    fn pieces(decoder: usize, ids: &[u32]) -> (Vec<String>, String) {
        let (decoder, tokens) = &decoders()[decoder];
        let mut detokenizer = tiny(decoder, tokens, TokenizerConfig::default()).detokenizer(true);
        (ids.iter().map(|id| detokenizer.push(*id)).collect(), detokenizer.finish())
    }

    #[test]
    fn characters_come_whole_and_as_soon_as_they_are_certain() {
        let (given, rest) = pieces(1, &[1, 2, 3, 4, 5, 0, 6, 0, 11, 6]);
        assert_eq!(given, [" I", "", "", "", "😀", "a", "", "\u{FFFD}a", "", ""]);
        assert_eq!(rest, "\u{FFFD}");
    }

    #[test]
    fn a_run_of_byte_tokens_is_decided_as_a_whole() {
        let (given, rest) = pieces(2, &[0, 7, 8, 9, 1, 7, 8, 7, 7, 8, 0, 9]);
        assert_eq!(
            given,
            ["a", "", "", "", "é\nb", "", "", "", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}", "\u{FFFD}", " a", ""]
        );
        assert_eq!(rest, "\n");
    }

    proptest! {
        #[test]
        fn what_is_given_is_a_prefix_of_the_whole_text(
            ids in prop::collection::vec(0..14_u32, 0..24),
            skip_special: bool,
        ) {
            for (decoder, tokens) in decoders() {
                let tokenizer = tiny(&decoder, tokens, TokenizerConfig::default());
                let texts: Vec<_> =
                    (0..=ids.len()).map(|end| decode_all(&tokenizer, &ids[..end], skip_special)).collect();
                let mut detokenizer = tokenizer.detokenizer(skip_special);
                let mut given = String::new();
                for end in 0..=ids.len() {
                    let whole = given.clone() + &detokenizer.clone().finish();
                    prop_assert_eq!(&whole, &texts[end], "{}", decoder);
                    for text in &texts[end..] {
                        prop_assert!(text.starts_with(&given), "{:?} of {:?}: {}", given, text, decoder);
                    }
                    given.extend(ids.get(end).map(|id| detokenizer.push(*id)));
                }
                prop_assert_eq!(Some(&tokenizer.decode(&ids, skip_special)), texts.last());
            }
        }

        #[test]
        fn a_continuation_is_what_its_tokens_add_to_the_text(
            ids in prop::collection::vec(0..14_u32, 0..24),
            cut in 0..24_usize,
            skip_special: bool,
        ) {
            let (prompt, answer) = ids.split_at(cut.min(ids.len()));
            for (decoder, tokens) in decoders() {
                let tokenizer = tiny(&decoder, tokens, TokenizerConfig::default());
                let before = decode_all(&tokenizer, prompt, skip_special);
                let whole = decode_all(&tokenizer, &ids, skip_special);
                let mut detokenizer = tokenizer.detokenizer_after(prompt, skip_special);
                let mut given = String::new();
                for id in answer {
                    given.push_str(&detokenizer.push(*id));
                    let shown = given.clone() + &detokenizer.uncertain();
                    prop_assert!(!shown.contains('\u{FFFD}') || given.contains('\u{FFFD}'), "{}: {:?}", decoder, shown);
                }
                given.push_str(&detokenizer.finish());
                match whole.strip_prefix(&before) {
                    Some(added) => prop_assert_eq!(&given, added, "{}", decoder),
                    // The answer changed the end of the prompt's text. The common prefix belongs to the prompt.
                    None => prop_assert!(whole.ends_with(&given) && before.starts_with(&whole[..whole.len() - given.len()]), "{:?} of {:?} after {:?}: {}", given, whole, before, decoder),
                }
            }
        }
    }
}
