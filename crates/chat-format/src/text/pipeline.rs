//! Tokenizes text in steps that can be paused, cancelled and limited: added tokens, normalization, words, parts of
//! words.
//!
//! Invariant: the tokens are those of the tokenizers crate for the whole text.

use std::sync::OnceLock;

use tokenizers::{AddedToken, Model, ModelWrapper, Tokenizer};

use super::added::{AddedTokens, Part};
use super::divisions::{Division, LONGEST_PART, SplitPoints};
use super::encoded::{EncodeLimit, Stop};
use super::normalization::Normalization;
use super::words::{Sink, Words};
use crate::error::Error;

/// The number of bytes between two pauses, a few milliseconds of work.
const PAUSE: usize = 16 << 10;
/// The minimum size of words that are split.
const LONG_WORD: usize = 4 << 10;

/// The steps of a tokenizer.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// Added tokens that are matched in the original text, and those that are matched in the normalized text.
    added: [AddedTokens; 2],
    normalization: Normalization,
    words: Words,
    /// Created when a long word first needs it.
    divisions: OnceLock<Option<SplitPoints>>,
}

impl Pipeline {
    /// Returns `None` if the tokenizer has an unsupported step.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let normalization = Normalization::new(tokenizer.get_normalizer())?;
        let words = Words::new(tokenizer.get_pre_tokenizer())?;
        if words.looks_at_places() && !normalization.is_identity() {
            return None;
        }
        let added = |normalized: bool| {
            let tokens = tokenizer.get_added_tokens_decoder().into_iter();
            let tokens = tokens.filter(|(_, token)| token.normalized == normalized);
            let text = |token: &AddedToken| {
                if normalized {
                    normalization.apply_to_block(&token.content, true)
                } else {
                    token.content.clone()
                }
            };
            AddedTokens::new(tokens.map(|(id, token)| (id, token.clone(), text(&token))))
        };
        let added = [added(false)?, added(true)?];
        Some(Self { added, normalization, words, divisions: OnceLock::new() })
    }

    /// Returns the tokens of a text, without special tokens around it.
    pub(super) fn encode(
        &self,
        model: &ModelWrapper,
        text: &str,
        limit: &EncodeLimit,
    ) -> Result<Vec<u32>, Stop> {
        let mut tokens = Tokens { model, divisions: &self.divisions, limit, ids: Vec::new(), worked: 0 };
        let [raw, normalized] = &self.added;
        raw.parts(text, |part| {
            let Part::Text(place) = part else { return tokens.add(&part) };
            let normal = self.normalization.apply(&text[place.clone()], |bytes| tokens.pause(bytes))?;
            normalized.parts(&normal, |part| {
                let Part::Text(inner) = part else { return tokens.add(&part) };
                let is_start = place.start + inner.start == 0;
                self.words.each(&normal[inner], is_start, &mut tokens)
            })
        })?;
        Ok(tokens.ids)
    }
}

/// The tokens so far.
struct Tokens<'a> {
    model: &'a ModelWrapper,
    divisions: &'a OnceLock<Option<SplitPoints>>,
    limit: &'a EncodeLimit<'a>,
    ids: Vec<u32>,
    /// Bytes of work since the last pause.
    worked: usize,
}

impl Tokens<'_> {
    fn add(&mut self, part: &Part) -> Result<(), Stop> {
        if let Part::Token(id) = part {
            self.ids.push(*id);
        }
        self.check(0)?;
        self.pause(1)
    }

    /// Encodes a part of a word.
    fn part(&mut self, part: &str) -> Result<(), Stop> {
        if part.len() > LONGEST_PART {
            let message =
                format!("a word of {} bytes cannot be split; the limit is {LONGEST_PART}", part.len());
            return Err(Error::Tokenizer(message).into());
        }
        let tokens = self.model.tokenize(part).map_err(|error| Error::Tokenizer(error.to_string()))?;
        self.ids.extend(tokens.iter().map(|token| token.id));
        self.check(0)?;
        self.pause(part.len())
    }

    /// Fails if the tokens so far and `more` exceed the limit.
    fn check(&self, more: usize) -> Result<(), Stop> {
        let fewest = self.ids.len() + more;
        if fewest > self.limit.tokens { Err(Stop::Limit(fewest)) } else { Ok(()) }
    }
}

impl Sink for Tokens<'_> {
    fn word(&mut self, word: &str) -> Result<(), Stop> {
        let divisions = match word.len() {
            0..LONG_WORD => None,
            _ => self.divisions.get_or_init(|| SplitPoints::new(self.model)).as_ref(),
        };
        let Some(divisions) = divisions else { return self.part(word) };
        divisions.parts(word, |division| match division {
            Division::Part(part) => self.part(part),
            Division::Unfinished { bytes, tokens } => {
                self.check(tokens)?;
                // Scanning is much less work than encoding.
                self.pause(bytes.min(PAUSE / 16))
            }
        })
    }

    fn pause(&mut self, bytes: usize) -> Result<(), Stop> {
        self.worked += bytes;
        if self.worked < PAUSE {
            return Ok(());
        }
        self.worked = 0;
        (self.limit.pause)().map_err(Stop::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::error::Result;

    /// Building blocks of texts: words, whitespace, digits, composing letters, bytes, added tokens.
    const PIECES: [&str; 34] = [
        "a",
        "aa",
        "ab",
        "the ",
        " the",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u{a0}",
        "1",
        "23",
        "\u{b2}",
        "'s",
        "'LL",
        ".",
        "!?",
        "é",
        "e\u{301}",
        "각",
        "\u{1100}\u{1161}",
        "中",
        "、",
        "🦀",
        "\0",
        "▁",
        "<s>",
        "<end>",
        " <end> ",
        "<left>",
        "Day",
        "<",
        "A",
    ];

    fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert})
    }

    fn bytes(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn sequence(parts: &[Value]) -> Value {
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    /// Returns the pre-tokenizers of model families, with their normalizers.
    fn kinds() -> Vec<(Value, Value)> {
        let words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let lines = [split(r"[\r\n]", "Isolated", false), split(r"\s?[A-Za-z]+", "Isolated", false)];
        let ends = [split(r"\s+$", "Isolated", false), split(r"\p{N}+", "Isolated", false), bytes(false)];
        let marks = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let literal = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
        let next = json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithNext", "invert": false});
        vec![
            (bytes(true), Value::Null),
            (sequence(&[split(words, "Isolated", false), bytes(false)]), json!({"type": "NFC"})),
            (sequence(&[split(words, "Removed", true), bytes(false)]), Value::Null),
            (sequence(&[split(r"\s", "Removed", false), bytes(false)]), Value::Null),
            (sequence(&[&lines[..], &ends[..]].concat()), Value::Null),
            (sequence(&[json!({"type": "Digits", "individual_digits": true}), bytes(true)]), Value::Null),
            (sequence(&[json!({"type": "Digits", "individual_digits": false}), bytes(true)]), Value::Null),
            (Value::Null, json!({"type": "Sequence", "normalizers": [prepend, space]})),
            (literal, space.clone()),
            (next, space),
            (marks("first", false), Value::Null),
            (marks("always", true), Value::Null),
            (marks("never", true), Value::Null),
        ]
    }

    fn tokenizer(pre_tokenizer: &Value, normalizer: &Value) -> Tokenizer {
        let in_bytes = pre_tokenizer.to_string().contains("ByteLevel");
        let space = if in_bytes { "Ġ" } else { "▁" };
        let merges = ["a a", "aa aa", "a b", "t h", "th e", "_ the", "_ _", "__ __", "_ a", "1 2", "2 3"];
        let merges: Vec<String> = merges.iter().map(|merge| merge.replace('_', space)).collect();
        let letters: Vec<String> = if in_bytes {
            (0..=255).map(|byte| super::super::words::letters()[byte].to_string()).collect()
        } else {
            let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
            bytes.chain("▁abthes123.!é".chars().map(String::from)).chain(["<unk>".into()]).collect()
        };
        let joined = merges.iter().map(|merge| merge.replace(' ', ""));
        let vocabulary: serde_json::Map<_, _> =
            letters.into_iter().chain(joined).enumerate().map(|(id, token)| (token, id.into())).collect();
        let added = |id: usize, content: &str, lstrip: bool, rstrip: bool, normalized: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": rstrip,
                "normalized": normalized, "special": !normalized})
        };
        let added = [
            added(1000, "<s>", false, false, false),
            added(1001, "<end>", false, true, false),
            added(1002, "<left>", true, false, false),
            added(1003, "Day", false, false, true),
        ];
        let file = json!({"version": "1.0", "added_tokens": added, "decoder": null, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "padding": null, "truncation": null,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": !in_bytes, "unk_token": null}});
        Tokenizer::from_bytes(file.to_string()).expect("the file is well formed")
    }

    fn whole(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        tokenizer.encode_fast(text, false).expect("it encodes").get_ids().to_vec()
    }

    fn check(tokenizer: &Tokenizer, text: &str) {
        let pipeline = Pipeline::new(tokenizer).expect("every step is known");
        let ids = pipeline.encode(tokenizer.get_model(), text, &EncodeLimit::NONE).expect("it encodes");
        assert!(ids == whole(tokenizer, text), "{text:?} with {:?}", tokenizer.get_pre_tokenizer());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pieces_have_the_tokens_of_the_whole(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60),
            run in prop::sample::select(&PIECES[..]),
            times in 0..6000_usize,
        ) {
            // `run` repeats to a word that is long enough to be split.
            let half = pieces.len() / 2;
            let text = [&pieces[..half].concat(), &run.repeat(times), &pieces[half..].concat()].map(String::as_str).concat();
            for (pre_tokenizer, normalizer) in kinds() {
                check(&tokenizer(&pre_tokenizer, &normalizer), &text);
            }
        }
    }

    #[test]
    fn long_texts_have_the_tokens_of_the_whole() {
        let mut letters = PIECES.iter().cycle();
        let text: String =
            (0..40_000).map(|index| letters.nth(index * index % 7).copied().unwrap_or_default()).collect();
        for (pre_tokenizer, normalizer) in kinds() {
            check(&tokenizer(&pre_tokenizer, &normalizer), &text);
        }
    }

    /// The cost of a text depends on the limit, not on its length.
    #[test]
    fn a_text_is_left_at_the_limit() {
        for (pre_tokenizer, normalizer) in kinds() {
            let tokenizer = tokenizer(&pre_tokenizer, &normalizer);
            let pipeline = Pipeline::new(&tokenizer).expect("every step is known");
            for text in ["the 1 é. ".repeat(200_000), "a".repeat(1 << 20), "ab".repeat(1 << 20)] {
                let pauses = AtomicUsize::new(0);
                let pause = || -> Result<()> {
                    pauses.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                let limit = EncodeLimit { tokens: 500, pause: &pause };
                let outcome = pipeline.encode(tokenizer.get_model(), &text, &limit);
                assert!(matches!(outcome, Err(Stop::Limit(501..))), "{pre_tokenizer}");
                // Normalization is cheap and runs first. The whole text would take more than sixty further pauses.
                let normalizing = if normalizer.is_null() { 0 } else { text.len() / PAUSE };
                // A slow pattern is tried at every position of the text.
                let searching = if pre_tokenizer.to_string().contains('$') { text.len() / 64 } else { 0 };
                let pauses = pauses.into_inner();
                assert!(pauses <= normalizing + searching + 16, "{pauses} for {pre_tokenizer}");
            }
        }
    }

    #[test]
    fn an_error_of_a_pause_ends_the_work() {
        for (pre_tokenizer, normalizer) in kinds() {
            let tokenizer = tokenizer(&pre_tokenizer, &normalizer);
            let pipeline = Pipeline::new(&tokenizer).expect("every step is known");
            let limit = EncodeLimit { pause: &|| Err(Error::Cancelled), ..EncodeLimit::NONE };
            let outcome = pipeline.encode(tokenizer.get_model(), &"the 1. ".repeat(20_000), &limit);
            assert!(matches!(outcome, Err(Stop::Failed(Error::Cancelled))), "{pre_tokenizer}");
        }
    }

    #[test]
    fn unknown_steps_are_left_to_the_crate() {
        for pre_tokenizer in [
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            sequence(&[bytes(false), bytes(false)]),
        ] {
            assert!(Pipeline::new(&tokenizer(&pre_tokenizer, &Value::Null)).is_none(), "{pre_tokenizer}");
        }
        for normalizer in [json!({"type": "StripAccents"}), json!({"type": "NFKC"})] {
            assert!(Pipeline::new(&tokenizer(&Value::Null, &normalizer)).is_none(), "{normalizer}");
        }
    }
}
