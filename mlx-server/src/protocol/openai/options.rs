//! The request fields that chats and completions share: the model, the length and number of answers, the form of the response.

use mlx_core::engine::{Priority, RequestOptions, Speculate};
use mlx_json::Value;
use serde_json::json;
use utoipa::ToSchema;

use super::writer::OutputOptions;
use super::{OneOrMany, constraint, sampling};
use crate::chat_request::GenerationSpec;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::request_log::RequestId;

field_group! {
    /// The model, and the length and number of answers.
    pub(crate) struct OutputFields {
        /// The model's name; without it the first model answers.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// The limit of generated tokens; without it, the answer ends when the model ends it or the context is full.
        #[schema(minimum = 0, example = 5)]
        pub(crate) max_tokens: usize,
        /// The text ends before the first of these strings.
        pub(crate) stop: OneOrMany,
        /// Continue after a token that ends the text.
        #[schema(example = true)]
        pub(crate) ignore_eos: bool,
        /// The number of answers to each prompt; with those to all prompts, at most the server's `--max-choices`.
        #[schema(minimum = 1, example = 2)]
        pub(crate) n: usize,
        /// Stream the answer as server-sent events.
        #[schema(example = true)]
        pub(crate) stream: bool,
        /// Only with `stream: true`: what the stream contains besides the answer.
        #[schema(value_type = StreamOptions)]
        pub(crate) stream_options: Value,
        /// Also give the token ids of prompt and answer.
        #[schema(example = true)]
        pub(crate) return_token_ids: bool,
        /// Whether the answer must have the same bits whatever runs beside it; the default is the server's `--exact`.
        #[schema(example = true)]
        pub(crate) exact: bool,
        /// Where drafts of the answer come from, which change its speed and nothing else: auto, off, lookup, suffix, draft or mtp; the
        /// default is the server's `--speculate`.
        #[schema(pattern = "^(auto|off|lookup|suffix|draft|mtp)$", example = "lookup")]
        pub(crate) speculate: String,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user; written to the log line of the request.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// What a stream contains besides the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ToSchema)]
pub(crate) struct StreamOptions {
    /// Token counts in a last chunk.
    pub(crate) include_usage: bool,
}

/// Takes the fields that chats and completions share.
pub(super) fn read(fields: &mut Fields) -> Result<(GenerationSpec, OutputOptions), ApiError> {
    let output = OutputFields::read(fields)?;
    let choices = output.n.unwrap_or(1);
    if choices == 0 {
        return Err(ApiError::field("n", "is 0; it must be at least 1"));
    }
    let (constraint, constraint_field) = constraint::read(fields)?.unzip();
    let is_streamed = output.stream.unwrap_or(false);
    let spec = GenerationSpec {
        model: output.model,
        options: RequestOptions {
            sampling: sampling::read(fields)?,
            max_tokens: output.max_tokens,
            stop: output.stop.map_or(Vec::new(), OneOrMany::into_vec),
            ignore_eos: output.ignore_eos.unwrap_or(false),
            priority: priority(output.priority.as_deref())?,
            exact: output.exact,
            speculate: speculate(output.speculate.as_deref())?,
            constraint,
            ..RequestOptions::default()
        },
        constraint_field,
        choices,
        is_streamed,
        user: output.user,
        request_id: RequestId::default(),
    };
    let output = OutputOptions {
        logprobs: false,
        token_ids: output.return_token_ids.unwrap_or(false),
        usage: includes_usage(is_streamed, output.stream_options)?,
    };
    Ok((spec, output))
}

/// A source of drafts by its name.
pub(crate) fn speculate(name: Option<&str>) -> Result<Option<Speculate>, ApiError> {
    name.map(str::parse).transpose().map_err(|why: String| ApiError::field("speculate", why))
}

/// A priority by its name.
pub(crate) fn priority(name: Option<&str>) -> Result<Priority, ApiError> {
    match name {
        None | Some("normal") => Ok(Priority::Normal),
        Some("low") => Ok(Priority::Low),
        Some("high") => Ok(Priority::High),
        Some(_) => Err(ApiError::field("priority", "must be low, normal or high")),
    }
}

fn includes_usage(is_streamed: bool, options: Option<Value>) -> Result<bool, ApiError> {
    let Some(options) = options else { return Ok(false) };
    let mut fields = Fields::inside("stream_options", options)?;
    let include_usage = fields.take("include_usage")?.unwrap_or(false);
    fields.only("include_obfuscation", &[json!(false)], "nothing is added to hide lengths")?;
    fields.end()?;
    if !is_streamed {
        return Err(ApiError::field("stream_options", "may only be given with stream: true"));
    }
    Ok(include_usage)
}
