//! The request and the response of `POST /v1/embeddings`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlx_core::engine::Priority;
use mlx_core::sentence_transformers::{Pooling, PromptChoice};
use mlx_json::Value;
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::completion::{Prompt, prompts};
use super::options::priority;
use super::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Texts to embed.
    pub(crate) struct EmbeddingFields {
        /// A string, a list of strings, a list of token ids, or a list of such lists.
        #[schema(value_type = String, example = "Once upon a time")]
        pub(crate) input: Value,
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// `float` (a list of numbers) or `base64` (their bytes as f32, little-endian).
        #[schema(pattern = "^(float|base64)$", example = "base64")]
        pub(crate) encoding_format: String,
        /// Number of leading dimensions to return.
        #[schema(minimum = 1, example = 8)]
        pub(crate) dimensions: usize,
        /// The pooling of hidden states: the `mean` of all, the `last` one, or the first one (`cls`). By default, the pooling of the model's
        /// training.
        #[schema(pattern = "^(mean|last|cls)$", example = "last")]
        pub(crate) pooling: String,
        /// The name of one of the model's prompts, which is prepended to each text. By default, the model's default prompt, if it has one.
        #[schema(example = "query")]
        pub(crate) prompt_name: String,
        /// A text that is prepended to each text, instead of a prompt of the model.
        #[schema(example = "query: ")]
        pub(crate) prompt: String,
        /// `query` or `document` (also `search_query` and `search_document`): prepends the model's prompt for such texts, or its default
        /// prompt.
        #[schema(pattern = "^(query|document|search_query|search_document)$", example = "query")]
        pub(crate) input_type: String,
        /// Scale vectors to length 1. By default, vectors are scaled unless the model's modules.json has no such step.
        #[schema(example = true)]
        pub(crate) normalize: bool,
        /// True (the default) cuts texts that are too long at their end; false rejects them.
        #[schema(example = false)]
        pub(crate) truncate: bool,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// The encoding of vectors in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// A list of numbers.
    Float,
    /// The bytes of the numbers in base64.
    Base64,
}

/// A parsed embedding request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EmbeddingRequest {
    /// The inputs; at least one.
    pub(crate) inputs: Vec<Prompt>,
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The encoding of the vectors.
    pub(crate) encoding: Encoding,
    /// The number of leading dimensions to return.
    pub(crate) dimensions: Option<usize>,
    /// True to cut texts that are too long, false to reject them.
    pub(crate) truncate: bool,
    /// The pooling. By default, that of the model's training.
    pub(crate) pooling: Option<Pooling>,
    /// The prompt to prepend to each text.
    pub(crate) prompt: PromptChoice,
    /// True to scale vectors to length 1. By default, the model's files decide.
    pub(crate) normalize: Option<bool>,
    /// The priority in the queue.
    pub(crate) priority: Priority,
    /// The end user.
    pub(crate) user: Option<String>,
}

impl EmbeddingRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = EmbeddingFields::read(fields)?;
        let encoding = match given.encoding_format.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(_) => return Err(ApiError::field("encoding_format", "must be float or base64")),
        };
        let pooling = match given.pooling.as_deref() {
            None => None,
            Some("mean") => Some(Pooling::Mean),
            Some("last") => Some(Pooling::Last),
            Some("cls") => Some(Pooling::Cls),
            Some(_) => return Err(ApiError::field("pooling", "must be mean, last or cls")),
        };
        let prompt = prompt_choice(given.prompt_name, given.prompt, given.input_type.as_deref())?;
        if given.dimensions == Some(0) {
            return Err(ApiError::field("dimensions", "is 0; it must be at least 1"));
        }
        Ok(Self {
            inputs: texts(given.input, "input")?,
            model: given.model,
            encoding,
            dimensions: given.dimensions,
            truncate: given.truncate.unwrap_or(true),
            pooling,
            prompt,
            normalize: given.normalize,
            priority: priority(given.priority.as_deref())?,
            user: given.user,
        })
    }
}

/// Returns the prompt that a request selects by its name, as a text, or by the use of the texts.
fn prompt_choice(
    name: Option<String>,
    text: Option<String>,
    input_type: Option<&str>,
) -> Result<PromptChoice, ApiError> {
    match (name, text, input_type) {
        (None, None, None) => Ok(PromptChoice::Default),
        (Some(name), None, None) => Ok(PromptChoice::Named(name)),
        (None, Some(text), None) => Ok(PromptChoice::Text(text)),
        (None, None, Some("query" | "search_query")) => Ok(PromptChoice::Query),
        (None, None, Some("document" | "search_document")) => Ok(PromptChoice::Document),
        (None, None, Some(_)) => {
            Err(ApiError::field("input_type", "must be query, document, search_query or search_document"))
        }
        (Some(_), _, Some(_)) => {
            Err(ApiError::field("input_type", "contradicts prompt_name; give only one of them"))
        }
        (None, Some(_), Some(_)) => {
            Err(ApiError::field("input_type", "contradicts prompt; give only one of them"))
        }
        (Some(_), Some(_), None) => {
            Err(ApiError::field("prompt", "contradicts prompt_name; give only one of them"))
        }
    }
}

/// Reads texts to embed in any of OpenAI's forms. None of them may be empty.
pub(crate) fn texts(given: Option<Value>, field: &str) -> Result<Vec<Prompt>, ApiError> {
    let is_one = matches!(given, Some(Value::String(_)));
    let texts = prompts(given, field)?;
    let is_empty = |text: &Prompt| match text {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
    };
    match texts.iter().position(is_empty) {
        None => Ok(texts),
        Some(_) if is_one => Err(ApiError::field(field, "is empty; give a text")),
        Some(index) => Err(ApiError::field(format!("{field}[{index}]"), "is empty; give a text")),
    }
}

impl PartialSchema for EmbeddingRequest {
    fn schema() -> RefOr<Schema> {
        merged([EmbeddingFields::schema()], &[]).build(&["input"])
    }
}

impl ToSchema for EmbeddingRequest {}

/// The embeddings of a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The embeddings, in the order of the inputs.
    pub(crate) data: Vec<EmbeddingObject>,
    /// The name of the model.
    pub(crate) model: String,
    /// Token counts.
    pub(crate) usage: EmbeddingUsage,
}

/// The embedding of an input.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct EmbeddingObject {
    /// Always `embedding`.
    pub(crate) object: &'static str,
    /// The index of the input.
    pub(crate) index: usize,
    /// The vector.
    pub(crate) embedding: Vector,
}

/// The vector of an embedding.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    /// Numbers.
    Float(Vec<f32>),
    /// The bytes of the numbers (f32, little-endian) in base64.
    Base64(String),
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    /// Tokens of all inputs.
    pub(crate) prompt_tokens: usize,
    /// Equal to `prompt_tokens`, since nothing is generated.
    pub(crate) total_tokens: usize,
    /// The number of inputs that were cut at their end. Absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) truncated_inputs: usize,
}

/// Returns true for the counts that responses leave out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Vector {
    /// Encodes the numbers of a vector.
    pub(crate) fn new(numbers: Vec<f32>, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Float(numbers),
            Encoding::Base64 => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn vectors_are_numbers_or_their_bytes() {
        // 1.0 is 0x3f80_0000.
        assert_eq!(Vector::new(vec![1.0], Encoding::Base64), Vector::Base64("AACAPw==".into()));
        assert_eq!(Vector::new(vec![1.0, 0.5], Encoding::Float), Vector::Float(vec![1.0, 0.5]));
    }

    #[test]
    fn an_empty_text_is_refused_with_its_index() {
        for (given, field) in [
            (json!(""), "input"),
            (json!([]), "input"),
            (json!(["a", ""]), "input[1]"),
            (json!(["a", []]), "input[1]"),
        ] {
            assert_eq!(texts(Some(given), "input").expect_err(field).param(), Some(field));
        }
    }
}
