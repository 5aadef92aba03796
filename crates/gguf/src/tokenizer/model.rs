//! The kind of vocabulary of a GGUF file.

use super::pre_tokenizer::{GEMMA, PreTokenizer};
use crate::error::Result;
use crate::metadata::Metadata;

/// The key that names the kind of vocabulary.
pub(super) const MODEL: &str = "tokenizer.ggml.model";
/// The key that names the pre-tokenizer of a byte-pair vocabulary.
pub(super) const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";

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
            Some("gemma4") => Ok(Self::BytePair(GEMMA)),
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
