//! Builds tokenizer.json from the vocabulary of a GGUF file. The token ids equal the ids in llama.cpp and transformers.

mod byte_pair;
mod known_tokens;
mod model;
mod pre_tokenizer;
mod sentencepiece;
mod special_tokens;
mod steps;
mod vocabulary;

use serde_json::{Value, json};

use crate::error::Result;
use crate::metadata::Metadata;
pub(crate) use model::Model;
pub(crate) use special_tokens::SpecialTokens;
pub(crate) use vocabulary::Vocabulary;

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

#[cfg(test)]
pub(crate) mod tests;
