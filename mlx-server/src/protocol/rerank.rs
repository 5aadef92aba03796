//! The request and the response of `POST /v1/rerank`, compatible with Jina, Cohere and vLLM.

use mlx_core::engine::Priority;
use mlx_json::Value;
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::openai::options::priority;
use super::openai::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Documents to rank.
    pub(crate) struct RerankFields {
        /// The query to compare the documents with.
        #[schema(example = "What is the capital of France?")]
        pub(crate) query: String,
        /// The texts to rank, as strings or as objects with a `text`.
        #[schema(value_type = Vec<String>, example = json!(["Paris", "Berlin"]))]
        pub(crate) documents: Value,
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-reranker")]
        pub(crate) model: String,
        /// The instruction for the model: what makes a document relevant.
        #[schema(example = "Find the passage that answers the question")]
        pub(crate) instruction: String,
        /// Return only this many of the most relevant documents.
        #[schema(minimum = 1, example = 1)]
        pub(crate) top_n: usize,
        /// Also return the texts.
        #[schema(example = true)]
        pub(crate) return_documents: bool,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// A parsed rerank request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RerankRequest {
    /// The query to compare the documents with.
    pub(crate) query: String,
    /// The texts to rank; at least one.
    pub(crate) documents: Vec<String>,
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The instruction for the model.
    pub(crate) instruction: Option<String>,
    /// The maximum number of results.
    pub(crate) top_n: Option<usize>,
    /// True to return the texts too.
    pub(crate) return_documents: bool,
    /// The priority in the queue.
    pub(crate) priority: Priority,
    /// The end user.
    pub(crate) user: Option<String>,
}

impl RerankRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = RerankFields::read(fields)?;
        if given.top_n == Some(0) {
            return Err(ApiError::field("top_n", "is 0; it must be at least 1"));
        }
        Ok(Self {
            query: given.query.ok_or_else(|| ApiError::field("query", "is required"))?,
            documents: documents(given.documents)?,
            model: given.model,
            instruction: given.instruction,
            top_n: given.top_n,
            return_documents: given.return_documents.unwrap_or(false),
            priority: priority(given.priority.as_deref())?,
            user: given.user,
        })
    }
}

fn documents(given: Option<Value>) -> Result<Vec<String>, ApiError> {
    let Some(Value::Array(given)) = given.filter(|given| given != &Value::Array(Vec::new())) else {
        return Err(ApiError::field("documents", "must be a list of at least one text"));
    };
    let text = |(index, document)| match document {
        Value::String(text) => Ok(text),
        Value::Object(mut object) if object.len() == 1 => match object.shift_remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(index),
        },
        _ => Err(index),
    };
    given.into_iter().enumerate().map(text).collect::<Result<_, usize>>().map_err(|index| {
        ApiError::field(format!("documents[{index}]"), "must be a string or an object with only a text")
    })
}

impl PartialSchema for RerankRequest {
    fn schema() -> RefOr<Schema> {
        merged([RerankFields::schema()], &[]).build(&["query", "documents"])
    }
}

impl ToSchema for RerankRequest {}

/// The documents, most relevant first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RerankList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The name of the model.
    pub(crate) model: String,
    /// The results, most relevant first.
    pub(crate) results: Vec<RerankResult>,
    /// Token counts.
    pub(crate) usage: RerankUsage,
}

/// The relevance of a document.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RerankResult {
    /// The index of the document in the request.
    pub(crate) index: usize,
    /// The relevance from 0 to 1: the probability of yes against no.
    pub(crate) relevance_score: f64,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<RerankDocument>,
}

/// A document.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RerankDocument {
    /// The text of the document.
    pub(crate) text: String,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct RerankUsage {
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Equal to `prompt_tokens`, since only one word is generated.
    pub(crate) total_tokens: usize,
}
