//! Builds tokenizer.json from the vocabulary of a GGUF file. The token ids are those of llama.cpp and transformers.

mod byte_pair;
mod pre_tokenizer;
mod sentencepiece;
mod special_tokens;
mod vocabulary;

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::metadata::Metadata;
use pre_tokenizer::PreTokenizer;
pub(crate) use special_tokens::SpecialTokens;
pub(crate) use vocabulary::Vocabulary;

/// The key that names the kind of vocabulary.
const MODEL: &str = "tokenizer.ggml.model";
/// The key that names the pre-tokenizer of a byte-pair vocabulary.
const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";
/// The key with the merges of a byte-pair vocabulary, best first.
const MERGES: &str = "tokenizer.ggml.merges";

/// The kind of vocabulary.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Model {
    /// Byte-pair encoding with merges.
    BytePair(PreTokenizer),
    /// SentencePiece's byte-pair encoding: a score per token instead of merges.
    SentencePiece,
}

impl Model {
    /// Reads the kind of vocabulary.
    pub(crate) fn of(metadata: &Metadata) -> Result<Self> {
        match metadata.text(MODEL)? {
            Some("gpt2") => Ok(Self::BytePair(pre_tokenizer(metadata)?)),
            // The name of its pre-tokenizer is often "default", which would be another one.
            Some("gemma4") => Ok(Self::BytePair(pre_tokenizer::GEMMA)),
            Some("llama") => Ok(Self::SentencePiece),
            Some(other) => Err(metadata.error(
                MODEL,
                format_args!("is {other:?}; gpt2, gemma4 and llama are supported. Use a safetensors version of the model"),
            )),
            None => Err(metadata.error(MODEL, "is missing: the file has no tokenizer")),
        }
    }
}

fn pre_tokenizer(metadata: &Metadata) -> Result<PreTokenizer> {
    let name = metadata.text(PRE_TOKENIZER)?.unwrap_or("default");
    let unknown = || {
        metadata.error(
            PRE_TOKENIZER,
            format_args!(
                "is {name:?}, which is not a supported pre-tokenizer. Use a safetensors version of the model"
            ),
        )
    };
    PreTokenizer::named(name).ok_or_else(unknown)
}

/// Returns the content of `tokenizer.json`.
pub(crate) fn tokenizer_json(metadata: &Metadata) -> Result<Value> {
    let model = Model::of(metadata)?;
    let mut vocabulary = Vocabulary::read(metadata)?;
    let special = SpecialTokens::read(metadata, &vocabulary, &model)?;
    let steps = match &model {
        Model::BytePair(pre_tokenizer) => {
            byte_pair::steps(metadata, &mut vocabulary, &special, pre_tokenizer)?
        }
        Model::SentencePiece => sentencepiece::steps(metadata, &mut vocabulary, &special)?,
    };
    let follows_spaces = matches!(model, Model::SentencePiece) && metadata.architecture()? == "phi3";
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added_tokens(follows_spaces),
        "normalizer": steps.normalizer,
        "pre_tokenizer": steps.pre_tokenizer,
        "post_processor": special.post_processor(&vocabulary),
        "decoder": steps.decoder,
        "model": steps.model,
    }))
}

/// The steps of a tokenizer, as tokenizer.json describes them.
struct Steps {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

/// The properties of a byte-pair model besides its vocabulary.
struct BytePair<'a> {
    /// The token for text that has no other token.
    unknown: Option<&'a str>,
    /// True if text without a token becomes tokens of bytes.
    byte_fallback: bool,
    /// True if a word that is a token needs no merges.
    ignore_merges: bool,
    /// The left and right token of each merge, best first.
    merges: Vec<(&'a str, &'a str)>,
}

impl BytePair<'_> {
    fn json(self, vocabulary: &Vocabulary) -> Value {
        // The short form of a merge cannot contain a space, and is skipped if it looks like a header.
        let is_short = |(left, right): &(&str, &str)| {
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
        model.insert("unk_token".into(), self.unknown.into());
        model.insert("continuing_subword_prefix".into(), Value::Null);
        model.insert("end_of_word_suffix".into(), Value::Null);
        model.insert("fuse_unk".into(), self.unknown.is_some().into());
        model.insert("byte_fallback".into(), self.byte_fallback.into());
        model.insert("ignore_merges".into(), self.ignore_merges.into());
        model.insert("vocab".into(), vocabulary.json());
        model.insert("merges".into(), merges.into());
        model.into()
    }
}

/// Returns the step that writes spaces as SentencePiece's mark.
fn spaces_to_marks() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

/// Returns the decoder of SentencePiece's tokens. `strip` removes the space that encoding added.
fn sentencepiece_decoder(strip: bool) -> Value {
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

#[cfg(test)]
pub(crate) mod tests;
