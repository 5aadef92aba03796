//! The requests of `POST /api/embed` and of the older `POST /api/embeddings`, and their answers.

use mlx_core::engine::Priority;
use mlx_core::sentence_transformers::PromptChoice;
use mlx_json::Value;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::completion::{Prompt, prompts};
use crate::protocol::openai::embedding::{EmbeddingRequest, Encoding, Vector};
use crate::protocol::openai::schema::merged;

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

/// A request for vectors that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaEmbedRequest(pub(crate) EmbeddingRequest);

impl OllamaEmbedRequest {
    /// Reads a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = OllamaEmbedFields::read(fields)?;
        // How long a model stays in memory is the server's --idle-timeout.
        fields.hint("keep_alive", &[]);
        // No option changes a vector.
        fields.hint("options", &[json!({})]);
        if given.dimensions == Some(0) {
            return Err(ApiError::field("dimensions", "is 0; it must be at least 1"));
        }
        Ok(Self(EmbeddingRequest {
            dimensions: given.dimensions,
            truncate: given.truncate.unwrap_or(true),
            ..request(prompts(given.input, "input")?, given.model)
        }))
    }
}

field_group! {
    /// The request of Ollama's older endpoint for embeddings.
    pub(crate) struct OllamaPromptFields {
        /// The text.
        #[schema(example = "Once upon a time")]
        pub(crate) prompt: String,
        /// The model's name; without it the first model is used.
        #[schema(example = "some-model")]
        pub(crate) model: String,
    }
}

/// A request for one vector that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaEmbeddingRequest(pub(crate) EmbeddingRequest);

impl OllamaEmbeddingRequest {
    /// Reads a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let OllamaPromptFields { prompt, model } = OllamaPromptFields::read(fields)?;
        fields.hint("keep_alive", &[]);
        fields.hint("options", &[json!({})]);
        let prompt = prompt.ok_or_else(|| ApiError::field("prompt", "is missing; give a text"))?;
        Ok(Self(request(prompts(Some(prompt.into()), "prompt")?, model)))
    }
}

/// Returns a request with the defaults of both endpoints. A text that is too long is cut.
fn request(inputs: Vec<Prompt>, model: Option<String>) -> EmbeddingRequest {
    EmbeddingRequest {
        inputs,
        model: model.map(|name| name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)),
        encoding: Encoding::Float,
        dimensions: None,
        truncate: true,
        pooling: None,
        prompt: PromptChoice::Default,
        // As Ollama's are.
        normalize: Some(true),
        priority: Priority::Normal,
        user: None,
    }
}

impl PartialSchema for OllamaEmbeddingRequest {
    fn schema() -> RefOr<Schema> {
        merged([OllamaPromptFields::schema()], &[]).build(&["prompt"])
    }
}

impl ToSchema for OllamaEmbeddingRequest {}

impl PartialSchema for OllamaEmbedRequest {
    fn schema() -> RefOr<Schema> {
        merged([OllamaEmbedFields::schema()], &[]).build(&["input"])
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

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbedding {
    /// Its numbers; none for an empty text.
    pub(crate) embedding: Vector,
}
