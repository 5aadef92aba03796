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
pub use steps::BytePair;
pub(crate) use vocabulary::Vocabulary;

/// A tokenizer in parts, which need not become one text.
#[derive(Debug)]
pub struct TokenizerParts {
    /// `tokenizer.json` with a model without tokens, and without added tokens.
    pub outline: Value,
    /// The added tokens.
    pub added_tokens: Value,
    /// The model.
    pub model: BytePair,
}

impl TokenizerParts {
    /// Returns the content of `tokenizer.json`.
    pub(crate) fn json(self) -> Value {
        let mut json = self.outline;
        json["added_tokens"] = self.added_tokens;
        json["model"] = self.model.json();
        json
    }
}

/// Returns the parts of `tokenizer.json`.
pub(crate) fn tokenizer(metadata: &Metadata) -> Result<TokenizerParts> {
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
    let outline = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": steps.normalizer,
        "pre_tokenizer": steps.pre_tokenizer,
        "post_processor": special.post_processor(&vocabulary),
        "decoder": steps.decoder,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    });
    let added_tokens = vocabulary.added_tokens(follows_spaces);
    Ok(TokenizerParts { outline, added_tokens, model: steps.model })
}

#[cfg(test)]
pub(crate) mod tests;
