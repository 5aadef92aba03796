//! The request fields that chats and completions share: the model, the length and number of answers, the form of the response.

use mlx_core::engine::{Priority, RequestOptions};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{OneOrMany, constraint, sampling};
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

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

/// The fields of every kind of generation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationSpec {
    /// The model's name.
    pub(crate) model: Option<String>,
    /// The options for the engine; the seed is that of the first answer.
    pub(crate) options: RequestOptions,
    /// The field that constrains the answer, if one does.
    pub(crate) constraint_field: Option<&'static str>,
    /// The number of answers to each prompt.
    pub(crate) choices: usize,
    /// Set if the answer is to be streamed.
    pub(crate) stream: Option<StreamOptions>,
    /// Also give the token ids of prompt and answer.
    pub(crate) token_ids: bool,
    /// The end user.
    pub(crate) user: Option<String>,
}

impl GenerationSpec {
    /// Takes the shared fields of a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let output = OutputFields::read(fields)?;
        let choices = output.n.unwrap_or(1);
        if choices == 0 {
            return Err(ApiError::field("n", "is 0; it must be at least 1"));
        }
        let (constraint, constraint_field) = constraint::read(fields)?.unzip();
        Ok(Self {
            model: output.model,
            options: RequestOptions {
                sampling: sampling::read(fields)?,
                max_tokens: output.max_tokens,
                stop: output.stop.map_or(Vec::new(), OneOrMany::into_vec),
                ignore_eos: output.ignore_eos.unwrap_or(false),
                priority: priority(output.priority.as_deref())?,
                exact: output.exact,
                constraint,
                ..RequestOptions::default()
            },
            constraint_field,
            choices,
            stream: stream(output.stream.unwrap_or(false), output.stream_options)?,
            token_ids: output.return_token_ids.unwrap_or(false),
            user: output.user,
        })
    }
}

impl GenerationSpec {
    /// An error of the core with the names of this request's fields.
    pub(crate) fn named(&self, error: ApiError) -> ApiError {
        let Some(field) = self.constraint_field else { return error };
        ["json_schema", "regex", "choice", "grammar"]
            .iter()
            .fold(error, |error, core| error.renamed(core, field))
    }
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

fn stream(is_on: bool, options: Option<Value>) -> Result<Option<StreamOptions>, ApiError> {
    let options = options.map(|options| -> Result<_, ApiError> {
        let mut fields = Fields::inside("stream_options", options)?;
        let include_usage = fields.take("include_usage")?.unwrap_or(false);
        fields.only("include_obfuscation", &[json!(false)], "nothing is added to hide lengths")?;
        fields.end()?;
        Ok(StreamOptions { include_usage })
    });
    match (is_on, options.transpose()?) {
        (false, Some(_)) => Err(ApiError::field("stream_options", "may only be given with stream: true")),
        (false, None) => Ok(None),
        (true, options) => Ok(Some(options.unwrap_or_default())),
    }
}
