//! A generation request, independent of its protocol. Invariant: each of its values affects the answer.

mod profile;

use std::sync::Arc;

use chat_format::{ChatTemplate, Effort, Message, OutputFormat, Thinking, ToolChoice, Tools};
use mlx_core::chat::{AnswerTools, ContextPolicy};
use mlx_core::engine::RequestOptions;
use mlx_json::{Map, Value};

use mlx_options::Profile;

use crate::error::ApiError;
use crate::generation::Origin;
use crate::request_log::RequestId;
use profile::PROFILE_THINK;

/// A chat to answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatRequest {
    /// The options that all kinds of generation share.
    pub(crate) spec: GenerationSpec,
    pub(crate) conversation: Conversation,
    /// The request's name of the token limit, `max_tokens` or `max_completion_tokens`.
    pub(crate) limit_name: &'static str,
    /// The policy for conversations that exceed the context.
    pub(crate) policy: ContextPolicy,
    /// True if the request gives the policy, so that no profile replaces it.
    pub(crate) gives_policy: bool,
}

/// The options that all kinds of generation share.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationSpec {
    /// The requested model.
    pub(crate) model: Option<String>,
    /// The options for the engine. The seed is that of the first answer.
    pub(crate) options: RequestOptions,
    /// The options that the request gives.
    pub(crate) given: GivenOptions,
    /// The profile of a request that is computed again; otherwise that of the model's name applies.
    pub(crate) profile: Option<Arc<Profile>>,
    /// The request field that constrains the answer.
    pub(crate) constraint_field: Option<&'static str>,
    /// The number of answers per prompt.
    pub(crate) choices: usize,
    /// True if the answer is streamed.
    pub(crate) is_streamed: bool,
    /// The request's end-user id.
    pub(crate) user: Option<String>,
    /// The id of the request, for the log.
    pub(crate) request_id: RequestId,
}

/// Options that a request gives, even if their values are those of the default. No profile replaces them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GivenOptions {
    /// The limit of tokens.
    pub(crate) max_tokens: bool,
    /// The stop strings.
    pub(crate) stop: bool,
    /// The seed. Some clients ask for a random one.
    pub(crate) seed: bool,
}

impl GenerationSpec {
    /// Sets the client and the id of the request.
    pub(crate) fn set_origin(&mut self, origin: &Origin) {
        let RequestOptions { client, log_id, .. } = origin.options();
        self.options = RequestOptions { client, log_id, ..std::mem::take(&mut self.options) };
        self.request_id = origin.id.clone();
    }

    /// Renames the field of a core error to the field of this request.
    pub(crate) fn rename_constraint_field(&self, error: ApiError) -> ApiError {
        let Some(field) = self.constraint_field else { return error };
        ["json_schema", "regex", "choice", "grammar"]
            .iter()
            .fold(error, |error, core| error.rename_field(core, field))
    }
}

/// A conversation, ready for the chat template.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conversation {
    /// The checked messages.
    pub(crate) messages: Vec<Message>,
    /// Extra variables for the template.
    pub(crate) variables: Map<String, Value>,
    pub(crate) tools: ToolRequest,
    /// The requested reasoning.
    pub(crate) thinking: ThinkingRequest,
}

/// The requested reasoning, and the handling of templates that do not support it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThinkingRequest {
    /// The requested reasoning.
    pub(crate) thinking: Thinking,
    /// The fallback for templates that do not support the requested value. Used only for hints.
    pub(crate) default_thinking: Thinking,
    /// The request field to report if the model does not support the value. `None` for a hint.
    pub(crate) field: Option<&'static str>,
    /// The maximum number of tokens in thoughts.
    pub(crate) budget: Option<usize>,
    /// True if the request gives `thinking`.
    pub(crate) is_given: bool,
    /// True if the request gives `budget`.
    pub(crate) gives_budget: bool,
}

impl ThinkingRequest {
    /// Requests thinking, which the model must support.
    pub(crate) fn on(field: &'static str) -> Self {
        Self { thinking: Thinking::On, field: Some(field), is_given: true, ..Self::default() }
    }

    /// Reads a reasoning effort that the model must support.
    pub(crate) fn required_effort(effort: Option<&str>, field: &'static str) -> Result<Self, ApiError> {
        let thinking = match effort {
            None => Thinking::Auto,
            Some("none" | "minimal") => Thinking::Off,
            Some("low") => Thinking::Effort(Effort::Low),
            Some("medium") => Thinking::Effort(Effort::Medium),
            Some("high") => Thinking::Effort(Effort::High),
            Some(_) => {
                return Err(ApiError::unsupported(field, "must be none, minimal, low, medium or high"));
            }
        };
        Ok(Self { thinking, field: Some(field), is_given: effort.is_some(), ..Self::default() })
    }

    /// Returns the error for a value that the template does not support. It names the cause and the accepted values.
    pub(crate) fn unsupported_error(
        cause: &str,
        field: &str,
        template: &ChatTemplate,
        format: &OutputFormat,
    ) -> ApiError {
        let words: &[_] = if field == "think" {
            // Every template accepts false, which is a hint.
            &[("true", Thinking::On), ("false", Thinking::Auto)]
        } else if field == PROFILE_THINK {
            &[("on", Thinking::On), ("off", Thinking::Off)]
        } else {
            &[("none", Thinking::Off)]
        };
        let others = Thinking::accepted(template, format, words);
        let others: Vec<String> = others.iter().map(|word| format!("give {word} or ")).collect();
        ApiError::field(field, format!("is not supported: {cause}; {}leave it out", others.concat()))
    }
}

/// The tools of a request, and the ones the model may or must call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolRequest {
    /// The tools.
    pub(crate) tools: Tools,
    /// The tools that may or must be called.
    pub(crate) choice: ToolChoice,
    /// True if an answer may contain at most one call.
    pub(crate) is_single: bool,
}

impl ToolRequest {
    /// Returns true if the model is shown tools.
    pub(crate) fn is_used(&self) -> bool {
        self.tools.are_shown(&self.choice)
    }

    /// Returns the tools in the form that starting an answer needs.
    pub(crate) fn answer_tools(&self) -> AnswerTools<'_> {
        AnswerTools { tools: &self.tools, choice: &self.choice, is_single: self.is_single }
    }

    /// Returns the tools in the form that the chat template expects.
    pub(crate) fn for_template(&self) -> Option<Vec<Value>> {
        self.tools.for_template(&self.choice)
    }
}
