//! The requests and responses of `POST /tokenize`, `POST /detokenize` and `POST /v1/chat/render`.

use mlx_json::Value;
use serde::Serialize;
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::completion::ids;
use super::schema::{Fixed, merged};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

/// Fields of `/tokenize` that support only neutral values.
fn fixed_fields() -> [Fixed; 1] {
    [("parse_special", vec![json!(true)], "the text of a special token is always parsed as that token")]
}

field_group! {
    /// A text to tokenize.
    pub(crate) struct TokenizeFields {
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// The text.
        #[schema(example = "Once upon a time")]
        pub(crate) content: String,
        /// Add the special tokens that the model expects around a text, such as BOS.
        #[schema(example = true)]
        pub(crate) add_special: bool,
        /// Also return the text of each token, or its bytes if they are not whole characters.
        #[schema(example = true)]
        pub(crate) with_pieces: bool,
    }
}

/// A parsed tokenize request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenizeRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The text.
    pub(crate) content: String,
    /// True to add the special tokens that the model expects around a text.
    pub(crate) add_special: bool,
    /// True to return the text of each token.
    pub(crate) with_pieces: bool,
}

impl TokenizeRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = TokenizeFields::read(fields)?;
        for (field, allowed, why) in fixed_fields() {
            fields.expect_one_of(field, &allowed, why)?;
        }
        Ok(Self {
            model: given.model,
            content: given.content.ok_or_else(|| ApiError::field("content", "is missing; give a text"))?,
            add_special: given.add_special.unwrap_or(false),
            with_pieces: given.with_pieces.unwrap_or(false),
        })
    }
}

impl PartialSchema for TokenizeRequest {
    fn schema() -> RefOr<Schema> {
        merged([TokenizeFields::schema()], &fixed_fields()).build(&["content"])
    }
}

impl ToSchema for TokenizeRequest {}

/// The tokens of a text.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `token_list` writes")]
pub(crate) struct TokenizeResponse {
    /// Token ids, or objects with `id` and `piece`.
    pub(crate) tokens: Vec<Value>,
    /// The number of tokens.
    pub(crate) count: usize,
}

field_group! {
    /// Tokens to decode.
    pub(crate) struct DetokenizeFields {
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// The token ids.
        #[schema(value_type = Vec<u32>, example = json!([9, 30]))]
        pub(crate) tokens: Value,
        /// Omit special tokens.
        #[schema(example = true)]
        pub(crate) skip_special: bool,
    }
}

/// A parsed detokenize request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DetokenizeRequest {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The token ids.
    pub(crate) tokens: Vec<u32>,
    /// True to omit special tokens.
    pub(crate) skip_special: bool,
}

impl DetokenizeRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = DetokenizeFields::read(fields)?;
        let tokens =
            given.tokens.ok_or_else(|| ApiError::field("tokens", "is missing; give a list of ids"))?;
        let skip_special = given.skip_special.unwrap_or(false);
        Ok(Self { model: given.model, tokens: ids(&tokens, "tokens")?, skip_special })
    }
}

impl PartialSchema for DetokenizeRequest {
    fn schema() -> RefOr<Schema> {
        merged([DetokenizeFields::schema()], &[]).build(&["tokens"])
    }
}

impl ToSchema for DetokenizeRequest {}

/// The decoded text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    /// The text.
    pub(crate) content: String,
}

/// A rendered conversation.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `token_list` writes")]
pub(crate) struct RenderResponse {
    /// The output of the chat template.
    pub(crate) prompt: String,
    /// The token ids of the prompt.
    pub(crate) tokens: Vec<u32>,
    /// The number of tokens.
    pub(crate) count: usize,
}
