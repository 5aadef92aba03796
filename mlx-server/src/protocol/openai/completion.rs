//! The request of `POST /v1/completions`.

use mlx_core::sampling::MAX_TOP_LOGPROBS;
use mlx_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::OneOrMany;
use super::constraint::ConstraintFields;
use super::options::{self, OutputFields, StreamOptions};
use super::sampling::SamplingFields;
use super::schema::{merged, register};
use super::writer::OutputOptions;
use crate::chat_request::GenerationSpec;
use crate::error::ApiError;
use crate::field_value::{as_integer, kind};
use crate::fields::{Fields, field_group};

field_group! {
    /// The fields of completions only.
    pub(crate) struct CompletionFields {
        /// Start the answer with the prompt. With `logprobs`, also return log-probabilities of the prompt.
        #[schema(example = true)]
        pub(crate) echo: bool,
        /// Return the log-probability of each token, and of this many of the most likely tokens.
        #[schema(minimum = 0, maximum = 20, example = 2)]
        pub(crate) logprobs: usize,
        /// Must equal `n`, since every generated answer is returned.
        #[schema(minimum = 1, example = 2)]
        pub(crate) best_of: usize,
    }
}

field_group! {
    /// The prompts to continue.
    pub(crate) struct PromptFields {
        /// A string, a list of strings, a list of token ids, or a list of such lists.
        #[schema(value_type = String, example = "Once upon a time")]
        pub(crate) prompt: Value,
    }
}

/// A prompt to continue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    /// Text. The special tokens that the model expects around a text are added.
    Text(String),
    /// Token ids. Nothing is added.
    Ids(Vec<u32>),
}

/// A parsed completion request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CompletionRequest {
    /// The options that all kinds of generation share.
    pub(crate) spec: GenerationSpec,
    /// The prompts; at least one.
    pub(crate) prompts: Vec<Prompt>,
    /// True to start the answers with their prompts.
    pub(crate) echo: bool,
    /// The optional parts of the response.
    pub(crate) output: OutputOptions,
}

impl CompletionRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let (mut spec, mut output) = options::read(fields)?;
        let completion = CompletionFields::read(fields)?;
        let prompts = prompts(PromptFields::read(fields)?.prompt, "prompt")?;
        fields.reject(&[("suffix", "this server has no fill-in-the-middle; leave it out")])?;
        match completion.best_of {
            Some(count) if count != spec.choices => {
                let message = format!("is {count}, but n is {}; they must be the same", spec.choices);
                return Err(ApiError::unsupported("best_of", message));
            }
            _ => {}
        }
        if completion.logprobs.is_some_and(|count| count > MAX_TOP_LOGPROBS) {
            return Err(ApiError::field("logprobs", format!("must be from 0 to {MAX_TOP_LOGPROBS}")));
        }
        let echo = completion.echo.unwrap_or(false);
        spec.options.logprobs = completion.logprobs;
        spec.options.prompt_logprobs = completion.logprobs.filter(|_| echo);
        output.logprobs = spec.options.logprobs.is_some();
        Ok(Self { spec, prompts, echo, output })
    }
}

impl PartialSchema for CompletionRequest {
    fn schema() -> RefOr<Schema> {
        let groups = [
            PromptFields::schema(),
            OutputFields::schema(),
            CompletionFields::schema(),
            ConstraintFields::schema(),
            SamplingFields::schema(),
        ];
        merged(groups, &[]).build(&["prompt"])
    }
}

impl ToSchema for CompletionRequest {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        register::<OneOrMany>(schemas);
        register::<StreamOptions>(schemas);
    }
}

/// Reads prompts in any of OpenAI's forms.
pub(crate) fn prompts(given: Option<Value>, field: &str) -> Result<Vec<Prompt>, ApiError> {
    let wrong = |message: &str| Err(ApiError::field(field, message));
    match given {
        None => wrong("is missing; give a text, or a list of token ids"),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => match list.first() {
            None => wrong("is an empty list; give at least one text or token id"),
            Some(Value::Number(_)) => Ok(vec![Prompt::Ids(ids(&Value::Array(list), field)?)]),
            Some(_) => {
                let one = |(index, prompt)| one_of_many(prompt, &format!("{field}[{index}]"));
                list.into_iter().enumerate().map(one).collect()
            }
        },
        Some(other) => wrong(&format!("is {}; it must be a text or a list", kind(&other))),
    }
}

fn one_of_many(prompt: Value, path: &str) -> Result<Prompt, ApiError> {
    match prompt {
        Value::String(text) => Ok(Prompt::Text(text)),
        other => Ok(Prompt::Ids(ids(&other, path)?)),
    }
}

/// Reads a list of token ids.
pub(crate) fn ids(value: &Value, path: &str) -> Result<Vec<u32>, ApiError> {
    let wrong = || ApiError::field(path, "must be a list of token ids");
    let id = |id: &Value| {
        id.as_number().and_then(as_integer).and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)
    };
    value.as_array().ok_or_else(wrong)?.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    #[test]
    fn prompts_come_in_four_forms() {
        let read = |prompt| prompts(Some(prompt), "prompt");
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(read(json!("a")), Ok(vec![text("a")]));
        assert_eq!(read(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(read(json!([1, 2])), Ok(vec![Prompt::Ids(vec![1, 2])]));
        assert_eq!(read(json!([[1], [2]])), Ok(vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2])]));
        for wrong in [json!([]), json!(5), json!([1, "a"]), json!(["a", 1]), json!([-1]), json!([1.5])] {
            let error = read(wrong).expect_err("it must be refused");
            assert!(error.param().is_some_and(|param| param.starts_with("prompt")));
        }
    }
}
