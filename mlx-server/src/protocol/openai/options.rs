//! The request fields that chats and completions share: model, length and number of answers, and the format of the response.

use mlx_core::engine::{Priority, RequestOptions, Speculate};
use mlx_json::Value;
use serde_json::json;
use utoipa::ToSchema;

use super::writer::OutputOptions;
use super::{OneOrMany, constraint, sampling};
use crate::chat_request::{GenerationSpec, GivenOptions};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::request_log::RequestId;

field_group! {
    /// The model, and the length and number of answers.
    pub(crate) struct OutputFields {
        /// The model's name. By default, the server's first model.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Maximum number of generated tokens. By default, the answer ends with the model's end token or at the end of the context.
        #[schema(minimum = 0, example = 5)]
        pub(crate) max_tokens: usize,
        /// Stop strings. The text ends before the first one that is generated.
        pub(crate) stop: OneOrMany,
        /// Continue after end tokens.
        #[schema(example = true)]
        pub(crate) ignore_eos: bool,
        /// The number of answers per prompt. The server's `--max-choices` limits the answers to all prompts together.
        #[schema(minimum = 1, example = 2)]
        pub(crate) n: usize,
        /// Stream the answer as server-sent events.
        #[schema(example = true)]
        pub(crate) stream: bool,
        /// Additional content of the stream. Requires `stream: true`.
        #[schema(value_type = StreamOptions)]
        pub(crate) stream_options: Value,
        /// Report the progress of a long prompt in chunks with `prompt_progress`, before the first token of a stream.
        #[schema(example = true)]
        pub(crate) return_progress: bool,
        /// Also return the token ids of prompt and answer.
        #[schema(example = true)]
        pub(crate) return_token_ids: bool,
        /// True to require the same bits regardless of other requests. The default is the server's `--exact`.
        #[schema(example = true)]
        pub(crate) exact: bool,
        /// The source of draft tokens, which affects only the speed: auto, off, lookup, suffix, draft or mtp. The default is the
        /// server's `--speculate`.
        #[schema(pattern = "^(auto|off|lookup|suffix|draft|mtp)$", example = "lookup")]
        pub(crate) speculate: String,
        /// The priority in the queue: low, normal or high.
        #[schema(pattern = "^(low|normal|high)$", example = "high")]
        pub(crate) priority: String,
        /// The end user. Written to the request's log line.
        #[schema(example = "someone")]
        pub(crate) user: String,
    }
}

/// Additional content of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ToSchema)]
pub(crate) struct StreamOptions {
    /// True to send token counts in a last chunk.
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
    let prompt_progress = output.return_progress.unwrap_or(false);
    if prompt_progress && !is_streamed {
        fields.add_unused(["return_progress".to_owned()]);
    }
    let given = GivenOptions {
        max_tokens: output.max_tokens.is_some(),
        stop: output.stop.is_some(),
        ..GivenOptions::default()
    };
    let spec = GenerationSpec {
        model: output.model,
        given,
        profile: None,
        options: RequestOptions {
            sampling: sampling::read(fields)?,
            max_tokens: output.max_tokens,
            stop: output.stop.map_or(Vec::new(), OneOrMany::into_vec),
            ignore_eos: output.ignore_eos.unwrap_or(false),
            priority: priority(output.priority.as_deref())?,
            exact: output.exact,
            speculate: speculate(output.speculate.as_deref())?,
            constraint,
            prompt_progress: prompt_progress && is_streamed,
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

/// Parses a source of drafts.
pub(crate) fn speculate(name: Option<&str>) -> Result<Option<Speculate>, ApiError> {
    name.map(str::parse).transpose().map_err(|reason: String| ApiError::field("speculate", reason))
}

/// Parses a priority.
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
    let mut fields = Fields::nested("stream_options", options)?;
    let include_usage = fields.take("include_usage")?.unwrap_or(false);
    fields.expect_one_of(
        "include_obfuscation",
        &[json!(false)],
        "nothing is added to hide lengths; leave it out",
    )?;
    fields.end()?;
    if !is_streamed {
        return Err(ApiError::field("stream_options", "may only be given with stream: true"));
    }
    Ok(include_usage)
}
