//! The request of `POST /v1/rerank`, and its responses: one in the form of Jina, Cohere and vLLM, one in that of text-embeddings-inference.

use chat_format::text::TruncationSide;
use mlx_core::engine::Priority;
use mlx_json::Value;
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::openai::embedding::is_zero;
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
        /// The name of `documents` in text-embeddings-inference. The response then is its list of scores.
        #[schema(value_type = Vec<String>, example = json!(["Paris", "Berlin"]))]
        pub(crate) texts: Value,
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
        /// The name of `return_documents` in text-embeddings-inference.
        #[schema(example = true)]
        pub(crate) return_text: bool,
        /// Return the model's scores before the function that maps them to relevance, such as the sigmoid.
        #[schema(example = true)]
        pub(crate) raw_scores: bool,
        /// True (the default) cuts documents that are too long; false rejects them.
        #[schema(example = false)]
        pub(crate) truncate: bool,
        /// The side on which texts are cut, `right` or `left`. By default, the model's tokenizer decides.
        #[schema(pattern = "^(right|left)$", example = "right")]
        pub(crate) truncation_direction: String,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// The name of the documents in text-embeddings-inference.
const TEXTS: &str = "texts";

/// A parsed rerank request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RerankRequest {
    /// The query to compare the documents with.
    pub(crate) query: String,
    /// The texts to rank; at least one.
    pub(crate) documents: Vec<String>,
    /// The field of the documents.
    pub(crate) documents_field: &'static str,
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The instruction for the model.
    pub(crate) instruction: Option<String>,
    /// The maximum number of results.
    pub(crate) top_n: Option<usize>,
    /// True to return the texts too.
    pub(crate) return_documents: bool,
    /// True to return scores that are not mapped to relevance.
    pub(crate) raw_scores: bool,
    /// True to cut documents that are too long, false to reject them.
    pub(crate) truncate: bool,
    /// The side on which texts are cut. By default, the model's tokenizer decides.
    pub(crate) truncation_side: Option<TruncationSide>,
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
        let (documents_field, listed) = match (given.documents, given.texts) {
            (Some(_), Some(_)) => {
                return Err(ApiError::field("texts", "is another name of documents; give only one of them"));
            }
            (None, Some(texts)) => (TEXTS, Some(texts)),
            (documents, None) => ("documents", documents),
        };
        // text-embeddings-inference spells it in any case.
        let side = |name: String| {
            TruncationSide::named(&name.to_lowercase())
                .ok_or_else(|| ApiError::field("truncation_direction", "must be right or left"))
        };
        let truncation_side = given.truncation_direction.map(side).transpose()?;
        let query = given.query.ok_or_else(|| ApiError::field("query", "is required"))?;
        if query.is_empty() {
            return Err(ApiError::field("query", "is empty; give a text"));
        }
        Ok(Self {
            query,
            documents: documents(listed, documents_field)?,
            documents_field,
            model: given.model,
            instruction: given.instruction,
            top_n: given.top_n,
            return_documents: given.return_documents.or(given.return_text).unwrap_or(false),
            raw_scores: given.raw_scores.unwrap_or(false),
            truncate: given.truncate.unwrap_or(true),
            truncation_side,
            priority: priority(given.priority.as_deref())?,
            user: given.user,
        })
    }
}

fn documents(given: Option<Value>, field: &str) -> Result<Vec<String>, ApiError> {
    let Some(Value::Array(given)) = given.filter(|given| given != &Value::Array(Vec::new())) else {
        return Err(ApiError::field(field, "must be a list of at least one text"));
    };
    let text = |document| match document {
        Value::String(text) => Some(text),
        Value::Object(mut object) if object.len() == 1 => match object.shift_remove("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let one = |(index, document)| match text(document) {
        Some(text) if text.is_empty() => {
            Err(ApiError::field(format!("{field}[{index}]"), "is empty; give a text"))
        }
        Some(text) => Ok(text),
        None => {
            let message = "must be a string or an object with only a text";
            Err(ApiError::field(format!("{field}[{index}]"), message))
        }
    };
    given.into_iter().enumerate().map(one).collect()
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
    /// The relevance: of most models from 0 to 1, of others or with `raw_scores` any number.
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
    /// Equal to `prompt_tokens`, since no text is generated.
    pub(crate) total_tokens: usize,
    /// The number of texts that were cut: documents, plus 1 if the query was cut. Absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) truncated_inputs: usize,
}

/// A score in the form of text-embeddings-inference.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TextScore {
    /// The index of the text in the request.
    index: usize,
    /// The relevance.
    score: f64,
    /// The text, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// The response to a request, in the form of the service whose field has the documents.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RerankResponse {
    /// For `documents`.
    List(RerankList),
    /// For `texts`.
    Scores(Vec<TextScore>),
}

impl RerankResponse {
    /// Returns the results in the form that belongs to the field of the documents.
    pub(crate) fn new(list: RerankList, documents_field: &str) -> Self {
        if documents_field != TEXTS {
            return Self::List(list);
        }
        let score = |result: RerankResult| TextScore {
            index: result.index,
            score: result.relevance_score,
            text: result.document.map(|document| document.text),
        };
        Self::Scores(list.results.into_iter().map(score).collect())
    }
}
