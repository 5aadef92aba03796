//! Requests for embeddings, for all front ends: applies a model's prompts, limits and modules to texts.

use chat_format::text::{EncodeLimit, EncodedText, Pause};

use crate::engine::{Engine, GenerationRequest, RequestOptions, Task};
use crate::error::{Error, Result};
use crate::sentence_transformers::{Pooling, Poolings, PromptChoice, TextEmbedding, normalized};

/// A text to embed.
#[derive(Debug, Clone, Copy)]
pub enum EmbedInput<'a> {
    /// Text. The prompt and the special tokens that the model expects around a text are added.
    Text(&'a str),
    /// Token ids. Nothing is added.
    Ids(&'a [u32]),
}

/// The options that the texts of a request share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// The prompt before each text.
    pub prompt: PromptChoice,
    /// The pooling. `None`: the model's own.
    pub pooling: Option<Pooling>,
    /// The number of leading dimensions to return. `None`: all.
    pub dimensions: Option<usize>,
    /// True to scale vectors to length 1. `None`: the model's files decide.
    pub normalize: Option<bool>,
    /// Reject a text that is too long instead of cutting it at its end.
    pub rejects_long: bool,
}

/// Turns texts into requests of an engine.
pub struct Embedder<'a> {
    engine: &'a Engine,
    embedding: &'a TextEmbedding,
    prompt: &'a str,
    pooling: Poolings,
    unpooled: usize,
    rejects_long: bool,
    form: VectorForm,
}

/// A request for the embedding of a text.
pub struct EmbedRequest {
    /// The request. Its result becomes an embedding by [`VectorForm::finish`].
    pub request: GenerationRequest,
    /// True if the text was cut.
    pub is_cut: bool,
}

/// The length and scale of the vectors of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorForm {
    dimensions: usize,
    normalize: bool,
}

impl<'a> Embedder<'a> {
    /// Checks the options against the model.
    pub fn new(engine: &'a Engine, options: &'a EmbedOptions) -> Result<Self> {
        let folder = engine.folder();
        let embedding = folder.embedding()?;
        let prompt = embedding.prompts.text(&options.prompt)?;
        let pooling = options.pooling.map_or(embedding.pooling, Poolings::from);
        let width = embedding.dimensions(engine.spec().hidden_size, pooling)?;
        let dimensions = options.dimensions.unwrap_or(width);
        if !(1..=width).contains(&dimensions) {
            let message = format!("is {dimensions}; the model's vectors have {width} numbers");
            return Err(Error::request("dimensions", message));
        }
        Ok(Self {
            engine,
            embedding,
            prompt,
            pooling,
            unpooled: embedding.unpooled(prompt, &folder.tokenizer)?,
            rejects_long: options.rejects_long,
            form: VectorForm { dimensions, normalize: options.normalize.unwrap_or(embedding.normalizes) },
        })
    }

    /// Returns the form of the vectors.
    pub fn form(&self) -> VectorForm {
        self.form
    }

    /// Returns the request for a text. Of `options`, only the fields that are not about embeddings apply.
    pub fn request(&self, input: EmbedInput, options: &RequestOptions, pause: Pause) -> Result<EmbedRequest> {
        let (tokens, source) = self.limit();
        let (encoded, unpooled) = match input {
            EmbedInput::Text(text) => {
                let (tokenizer, limit) = (&self.engine.folder().tokenizer, EncodeLimit { tokens, pause });
                (self.embedding.encode(tokenizer, self.prompt, text, &limit)?, self.unpooled)
            }
            EmbedInput::Ids(ids) => {
                let kept = ids[..ids.len().min(tokens)].to_vec();
                let truncated = kept.len() < ids.len();
                (EncodedText { truncated, first_truncated: false, ids: kept, second: None }, 0)
            }
        };
        if encoded.truncated && self.rejects_long {
            let message = format!("has more than {tokens} tokens; {source}");
            return Err(Error::context_length("input", tokens + 1, tokens, message));
        }
        let options = RequestOptions {
            task: Task::Embed(self.pooling),
            second: encoded.second,
            unpooled,
            ..options.clone()
        };
        let request = self.engine.request(encoded.ids, &options).map_err(|error| match error {
            Error::Request { field: "prompt", message } => Error::request("input", message),
            other => other,
        })?;
        Ok(EmbedRequest { request, is_cut: encoded.truncated })
    }

    /// Returns the maximum number of tokens of a text, and a sentence about its source.
    fn limit(&self) -> (usize, String) {
        let context = self.engine.spec().context_length;
        match self.embedding.limit() {
            Some((tokens, source)) if tokens < context => (tokens, format!("{source} allows {tokens}")),
            _ => (context, format!("the model's context holds {context}")),
        }
    }
}

impl VectorForm {
    /// Returns the embedding from the pooled hidden states of a text.
    pub fn finish(self, embedding: &TextEmbedding, pooled: Vec<f32>) -> Result<Vec<f32>> {
        self.apply(embedding.finish(pooled, self.normalize)?)
    }

    /// Cuts and scales a vector. A vector of zeros has no direction and stays as it is.
    fn apply(self, mut vector: Vec<f32>) -> Result<Vec<f32>> {
        vector.truncate(self.dimensions);
        if !vector.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite("an embedding"));
        }
        Ok(if self.normalize { normalized(&vector).unwrap_or(vector) } else { vector })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one_after_they_are_cut() {
        let apply = |raw: &[f32], dimensions, normalize| {
            VectorForm { dimensions, normalize }.apply(raw.to_vec()).expect("finite")
        };
        let raw = [3.0, -4.0, 12.0];
        assert_eq!(apply(&raw, 2, true), [0.6, -0.8]);
        assert_eq!(apply(&raw, 2, false), [3.0, -4.0]);
        let full = apply(&raw, 3, true);
        assert!((full.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(apply(&[0.0, 0.0, 1.0], 2, true), [0.0, 0.0]);
        assert_eq!(apply(&[1e-30, 0.0], 2, true), [1.0, 0.0], "squares do not vanish");
    }
}
