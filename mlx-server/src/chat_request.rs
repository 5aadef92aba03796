//! A request to generate, as the reader of any protocol leaves it. Invariant: everything in it changes the answer.

use chat_format::{ChatTemplate, Effort, Message, OutputFormat, Thinking, ToolChoice, Tools};
use mlx_core::chat::{AnswerTools, ContextPolicy};
use mlx_core::engine::RequestOptions;
use mlx_json::{Map, Value};

use crate::error::ApiError;
use crate::generation::Origin;
use crate::request_log::RequestId;

/// A chat to be answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatRequest {
    /// What all kinds of generation have in common.
    pub(crate) spec: GenerationSpec,
    /// The conversation.
    pub(crate) conversation: Conversation,
    /// The field that limits the tokens, by the name that the client used.
    pub(crate) limit_name: &'static str,
    /// What happens to a conversation that does not fit.
    pub(crate) policy: ContextPolicy,
}

/// What all kinds of generation have in common.
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
    /// Whether the answer is streamed.
    pub(crate) is_streamed: bool,
    /// The end user.
    pub(crate) user: Option<String>,
    /// The id of the request, for the log.
    pub(crate) request_id: RequestId,
}

impl GenerationSpec {
    /// Sets the client and the id of the request.
    pub(crate) fn set_origin(&mut self, origin: &Origin) {
        self.options.client = origin.client;
        self.request_id = origin.id.clone();
    }

    /// An error of the core with the names of this request's fields.
    pub(crate) fn named(&self, error: ApiError) -> ApiError {
        let Some(field) = self.constraint_field else { return error };
        ["json_schema", "regex", "choice", "grammar"]
            .iter()
            .fold(error, |error, core| error.renamed(core, field))
    }
}

/// A conversation as a chat template takes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conversation {
    /// The messages, checked.
    pub(crate) messages: Vec<Message>,
    /// The template's own variables.
    pub(crate) variables: Map<String, Value>,
    /// The tools that the template shows to the model.
    pub(crate) tools: ToolRequest,
    /// Whether the model is asked to think.
    pub(crate) thinking: ThinkingRequest,
}

/// Whether the model is asked to think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThinkingRequest {
    /// The requested thinking.
    pub(crate) thinking: Thinking,
    /// Used for a template without the requested value, if the request is a hint.
    pub(crate) default_thinking: Thinking,
    /// The field of the request, if a model that cannot follow it refuses the request. `None` for a hint.
    pub(crate) field: Option<&'static str>,
}

impl ThinkingRequest {
    /// What a field with the name of an effort demands.
    pub(crate) fn demanded(effort: Option<&str>, field: &'static str) -> Result<Self, ApiError> {
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
        Ok(Self { thinking, field: Some(field), ..Self::default() })
    }

    /// Returns the error for a value without a variable in the template. It names the cause and the accepted values.
    pub(crate) fn refused(
        cause: &str,
        field: &str,
        template: &ChatTemplate,
        format: &OutputFormat,
    ) -> ApiError {
        let words: &[_] = if field == "think" {
            // Every template accepts false: it is a hint.
            &[("true", Thinking::On), ("false", Thinking::Auto)]
        } else {
            &[("none", Thinking::Off)]
        };
        let others = Thinking::accepted(template, format, words);
        let others: Vec<String> = others.iter().map(|word| format!("give {word} or ")).collect();
        ApiError::field(field, format!("cannot be followed: {cause}; {}leave it out", others.concat()))
    }
}

/// The tools of a request, and which of them the model may or must call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolRequest {
    /// All of them.
    pub(crate) tools: Tools,
    /// Which may or must be called.
    pub(crate) choice: ToolChoice,
    /// Whether an answer may hold at most one call.
    pub(crate) is_single: bool,
}

impl ToolRequest {
    /// Whether the model is shown tools.
    pub(crate) fn is_used(&self) -> bool {
        self.tools.are_shown(&self.choice)
    }

    /// The tools as the start of an answer takes them.
    pub(crate) fn of_answer(&self) -> AnswerTools<'_> {
        AnswerTools { tools: &self.tools, choice: &self.choice, is_single: self.is_single }
    }

    /// The tools as a chat template sees them.
    pub(crate) fn for_template(&self) -> Option<Vec<Value>> {
        self.tools.for_template(&self.choice)
    }
}
