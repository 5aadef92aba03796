//! The request of `POST /api/embed` and its answer.

use mlx_core::engine::Priority;
use mlx_core::sentence_transformers::PromptChoice;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::completion::prompts;
use crate::protocol::openai::embedding::{EmbeddingRequest, Encoding, Vector};
use crate::protocol::openai::schema::{Fixed, merged};

field_group! {
    /// Texts to turn into vectors.
    pub(crate) struct OllamaEmbedFields {
        /// A text or a list of texts.
        #[schema(value_type = String, example = "Once upon a time")]
        pub(crate) input: Value,
        /// The model's name; without it the first model is used.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Keep this many of the first numbers.
        #[schema(minimum = 1, example = 8)]
        pub(crate) dimensions: usize,
        /// Cut a text that does not fit at its end; true unless given. Without it such a text is refused.
        #[schema(example = false)]
        pub(crate) truncate: bool,
    }
}

fn fixed() -> [Fixed; 1] {
    [("options", vec![json!({})], "no option changes a vector")]
}

/// A request for vectors that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaEmbedRequest(pub(crate) EmbeddingRequest);

impl OllamaEmbedRequest {
    /// Reads a request; every field is used or refused.
    pub(crate) fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let given = OllamaEmbedFields::read(&mut fields)?;
        fields.value("keep_alive");
        for (field, allowed, why) in fixed() {
            fields.only(field, &allowed, why)?;
        }
        fields.end()?;
        if given.dimensions == Some(0) {
            return Err(ApiError::field("dimensions", "is 0; it must be at least 1"));
        }
        Ok(Self(EmbeddingRequest {
            inputs: prompts(given.input, "input")?,
            model: given.model.map(|name| name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)),
            encoding: Encoding::Float,
            dimensions: given.dimensions,
            truncate: given.truncate.unwrap_or(true),
            pooling: None,
            prompt: PromptChoice::Default,
            // As Ollama's are.
            normalize: Some(true),
            priority: Priority::Normal,
            user: None,
        }))
    }
}

impl PartialSchema for OllamaEmbedRequest {
    fn schema() -> RefOr<Schema> {
        merged([OllamaEmbedFields::schema()], &fixed()).build(&["input"])
    }
}

impl ToSchema for OllamaEmbedRequest {}

/// The vectors of a request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbeddings {
    /// The model that computed them.
    pub(crate) model: String,
    /// A vector for each text, in their order.
    pub(crate) embeddings: Vec<Vector>,
    /// Nanoseconds that it took.
    pub(crate) total_duration: u64,
    /// Tokens of all texts.
    pub(crate) prompt_eval_count: usize,
}
