//! The parts of tokenizer.json that both kinds of vocabulary write.

use serde_json::{Map, Value, json};

/// The steps of a tokenizer, as tokenizer.json describes them.
pub(super) struct Steps {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
    pub(super) model: BytePair,
}

/// A byte-pair model.
#[derive(Debug)]
pub struct BytePair {
    /// The texts of the tokens, by id.
    pub tokens: Vec<String>,
    /// The token for text that has no other token.
    pub unknown: Option<String>,
    /// True if text without a token becomes tokens of bytes.
    pub byte_fallback: bool,
    /// True if a word that is a token needs no merges.
    pub ignore_merges: bool,
    /// The left and right token of each merge, best first.
    pub merges: Vec<(String, String)>,
}

impl BytePair {
    /// Returns the `model` of tokenizer.json.
    pub(super) fn json(self) -> Value {
        // The short form of a merge cannot contain a space, and is skipped if it looks like a header.
        let is_short = |(left, right): &(String, String)| {
            !left.contains(' ') && !right.contains(' ') && !left.starts_with("#version")
        };
        let merges: Vec<Value> = if self.merges.iter().all(is_short) {
            self.merges.iter().map(|(left, right)| format!("{left} {right}").into()).collect()
        } else {
            self.merges.iter().map(|(left, right)| json!([left, right])).collect()
        };
        let mut model = Map::new();
        model.insert("type".into(), "BPE".into());
        model.insert("dropout".into(), Value::Null);
        model.insert("unk_token".into(), self.unknown.clone().into());
        model.insert("continuing_subword_prefix".into(), Value::Null);
        model.insert("end_of_word_suffix".into(), Value::Null);
        model.insert("fuse_unk".into(), self.unknown.is_some().into());
        model.insert("byte_fallback".into(), self.byte_fallback.into());
        model.insert("ignore_merges".into(), self.ignore_merges.into());
        let ids = self.tokens.into_iter().enumerate();
        let vocabulary: Map<String, Value> = ids.map(|(id, text)| (text, Value::from(id))).collect();
        model.insert("vocab".into(), vocabulary.into());
        model.insert("merges".into(), merges.into());
        model.into()
    }
}

/// Returns the step that writes spaces as SentencePiece's mark.
pub(super) fn spaces_to_marks() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

/// Returns the decoder of SentencePiece's tokens. `strip` removes the space that encoding added.
pub(super) fn sentencepiece_decoder(strip: bool) -> Value {
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if strip {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}
