//! Turns tokens into text one by one, byte for byte what decoding all of them at once gives.

use super::decoder::Chain;
use super::tokenizer::Tokenizer;

/// Follows a sequence of tokens and gives its text as soon as it is certain.
///
/// Invariant: the text given so far is always a prefix of `decode` of the tokens so far and any that may
/// follow, and with [`finish`](Self::finish) it is exactly `decode` of all of them.
///
/// So a character that comes in several tokens is held until it is complete, and U+FFFD is only given for
/// bytes that no further token can repair. With byte fallback (Llama 2, Gemma) a run of byte tokens such as
/// `<0xE6>` is text only if all of it is valid, and otherwise one U+FFFD per byte: the run is held until a
/// token that is not a byte ends it.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    chain: Chain,
}

impl Detokenizer {
    fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let chain = tokenizer.chain().clone();
        Self { tokenizer, skip_special, chain }
    }

    /// Takes the next token and gives the text that became certain, which may be none. An id that is not in
    /// the vocabulary has no text.
    pub fn push(&mut self, id: u32) -> String {
        match self.tokenizer.token(id) {
            Some(token) if self.skip_special && self.tokenizer.is_special_token(&token) => String::new(),
            Some(token) => self.chain.push(token),
            None => String::new(),
        }
    }

    /// Gives the rest of the text, with U+FFFD for an incomplete character, and starts anew.
    pub fn finish(&mut self) -> String {
        let rest = self.chain.finish();
        self.reset();
        rest
    }

    /// Forgets all tokens, as if none had been pushed: after a rollback push the whole history again.
    pub fn reset(&mut self) {
        self.chain = self.tokenizer.chain().clone();
    }
}

impl Tokenizer {
    /// Decodes `ids`. Ids outside the vocabulary have no text; `skip_special` leaves out special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = self.detokenizer(skip_special);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// A detokenizer that decodes tokens one by one.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::config::TokenizerConfig;
    use super::super::tokenizer::tests::{decode_all, tiny};

    /// Letters, pieces of a character of four, three and two bytes, a stray byte and foreign characters.
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
    }
}
