//! The requests and responses of `POST /api/embed` and of the older `POST /api/embeddings`.

use mlx_core::engine::Priority;
use mlx_core::sentence_transformers::PromptChoice;
use mlx_json::Value;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::models::KeepAlive;
use crate::protocol::openai::completion::Prompt;
use crate::protocol::openai::embedding::{EmbeddingRequest, Encoding, Vector, texts};
use crate::protocol::openai::schema::merged;

field_group! {
    /// Texts to embed.
    pub(crate) struct OllamaEmbedFields {
        /// A string or a list of strings. Without texts, the server only loads the model.
        #[schema(value_type = String, example = "Once upon a time")]
        pub(crate) input: Value,
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Number of leading dimensions to return.
        #[schema(minimum = 1, example = 8)]
        pub(crate) dimensions: usize,
        /// Time without a request after which the model is unloaded, as in a chat.
        #[schema(value_type = String, example = "5m")]
        pub(crate) keep_alive: KeepAlive,
        /// True (the default) cuts texts that are too long at their end; false rejects them.
        #[schema(example = false)]
        pub(crate) truncate: bool,
    }
}

/// A parsed embedding request. Without inputs it only loads the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaEmbedRequest(pub(crate) EmbeddingRequest, pub(crate) Option<KeepAlive>);

impl OllamaEmbedRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = OllamaEmbedFields::read(fields)?;
        // No option affects embeddings.
        fields.take_unused("options", &[json!({})]);
        if given.dimensions == Some(0) {
            return Err(ApiError::field("dimensions", "is 0; it must be at least 1"));
        }
        let request = EmbeddingRequest {
            dimensions: given.dimensions,
            truncate: given.truncate.unwrap_or(true),
            ..request(texts_or_none(given.input, "input")?, given.model)
        };
        Ok(Self(request, given.keep_alive))
    }
}

field_group! {
    /// The request of Ollama's older embedding endpoint.
    pub(crate) struct OllamaPromptFields {
        /// The text. If it is empty, the server only loads the model.
        #[schema(example = "Once upon a time")]
        pub(crate) prompt: String,
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Time without a request after which the model is unloaded, as in a chat.
        #[schema(value_type = String, example = "5m")]
        pub(crate) keep_alive: KeepAlive,
    }
}

/// A parsed request for one embedding, or for none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OllamaEmbeddingRequest(pub(crate) EmbeddingRequest, pub(crate) Option<KeepAlive>);

impl OllamaEmbeddingRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let OllamaPromptFields { prompt, model, keep_alive } = OllamaPromptFields::read(fields)?;
        fields.take_unused("options", &[json!({})]);
        Ok(Self(request(texts_or_none(prompt.map(Value::from), "prompt")?, model), keep_alive))
    }
}

/// Reads texts. As in Ollama, an absent or empty text or list is a request without texts.
fn texts_or_none(given: Option<Value>, field: &str) -> Result<Vec<Prompt>, ApiError> {
    match given {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::Array(list)) if list.is_empty() => Ok(Vec::new()),
        given => texts(given, field),
    }
}

/// Returns a request with the defaults of both endpoints. Texts that are too long are truncated.
fn request(inputs: Vec<Prompt>, model: Option<String>) -> EmbeddingRequest {
    EmbeddingRequest {
        inputs,
        model: model.map(|name| name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)),
        encoding: Encoding::Float,
        dimensions: None,
        truncate: true,
        pooling: None,
        prompt: PromptChoice::Default,
        // Ollama normalizes embeddings.
        normalize: Some(true),
        priority: Priority::Normal,
        user: None,
    }
}

impl PartialSchema for OllamaEmbeddingRequest {
    fn schema() -> RefOr<Schema> {
        merged([OllamaPromptFields::schema()], &[]).build(&[])
    }
}

impl ToSchema for OllamaEmbeddingRequest {}

impl PartialSchema for OllamaEmbedRequest {
    fn schema() -> RefOr<Schema> {
        merged([OllamaEmbedFields::schema()], &[]).build(&[])
    }
}

impl ToSchema for OllamaEmbedRequest {}

/// The embeddings of a request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbeddings {
    /// The name of the model.
    pub(crate) model: String,
    /// The embeddings, in the order of the texts.
    pub(crate) embeddings: Vec<Vector>,
    /// The total time in nanoseconds.
    pub(crate) total_duration: u64,
    /// The time until the model was loaded, in nanoseconds.
    pub(crate) load_duration: u64,
    /// The number of tokens of all texts.
    pub(crate) prompt_eval_count: usize,
}

/// The embedding of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaEmbedding {
    /// The vector; empty for an empty text.
    pub(crate) embedding: Vector,
}
