//! The fields `thinking` and `output_config`: the reasoning effort, the display of thinking, and the format of the answer.

use chat_format::{Effort, Grammar, Thinking};
use mlx_json::Value;

use super::block::required;
use crate::chat_request::ThinkingRequest;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Thinking, and the format of the answer.
    pub(crate) struct ThinkingFields {
        /// `disabled` (the default), `enabled` or `adaptive`, as far as the model's chat template supports the choice. With
        /// `display: omitted`, only the signatures of thinking are sent. After `budget_tokens` tokens the thought is closed.
        #[schema(value_type = Object)]
        pub(crate) thinking: Value,
        /// `effort`, for templates that support efforts, and `format`, a JSON schema for the answer.
        #[schema(value_type = Object)]
        pub(crate) output_config: Value,
    }
}

/// The display of thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Display {
    /// Text and signatures are sent.
    #[default]
    Text,
    /// Only signatures are sent.
    Omitted,
}

/// The parsed options for thinking and for the format of the answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ThinkingOptions {
    /// The requested thinking. It is a hint, since many templates do not support the choice.
    pub(super) thinking: ThinkingRequest,
    /// The display of thinking.
    pub(super) display: Display,
    /// The grammar of the answer.
    pub(super) grammar: Option<Grammar>,
    /// The full names of unused fields.
    pub(super) ignored: Vec<String>,
}

/// Takes the fields.
pub(super) fn read(fields: &mut Fields) -> Result<ThinkingOptions, ApiError> {
    let given = ThinkingFields::read(fields)?;
    let mut options = ThinkingOptions { thinking: hint(Thinking::Off), ..ThinkingOptions::default() };
    let mut is_off = false;
    if let Some(thinking) = given.thinking {
        read_thinking(thinking, &mut options)?;
        is_off = options.thinking.thinking == Thinking::Off;
    }
    if let Some(config) = given.output_config {
        let mut fields = Fields::nested("output_config", config)?;
        if let Some(effort) = fields.take::<String>("effort")? {
            options.add_effort(&effort, is_off);
        }
        let format = fields.value("format").map(|format| read_format(format, "output_config.format"));
        options.grammar = format.transpose()?;
        options.ignored.extend(fields.into_unused());
    }
    Ok(options)
}

impl ThinkingOptions {
    /// Requests an effort. Templates without efforts get the value of `thinking` instead.
    fn add_effort(&mut self, effort: &str, is_off: bool) {
        let effort = match effort {
            "low" => Effort::Low,
            "medium" => Effort::Medium,
            "high" | "xhigh" | "max" => Effort::High,
            _ => return self.ignored.push("output_config.effort".to_owned()),
        };
        if !is_off {
            self.thinking.is_given = true;
            self.thinking.default_thinking = self.thinking.thinking;
            self.thinking.thinking = Thinking::Effort(effort);
        }
    }
}

fn hint(thinking: Thinking) -> ThinkingRequest {
    ThinkingRequest { thinking, ..ThinkingRequest::default() }
}

fn read_thinking(given: Value, options: &mut ThinkingOptions) -> Result<(), ApiError> {
    let mut fields = Fields::nested("thinking", given)?;
    let kind: String = required(&mut fields, "type")?;
    options.thinking = hint(match kind.as_str() {
        "disabled" => Thinking::Off,
        "enabled" | "adaptive" => Thinking::On,
        _ => {
            return Err(ApiError::unsupported("thinking.type", "must be disabled, enabled or adaptive"));
        }
    });
    options.thinking.is_given = true;
    options.thinking.budget = fields.take::<usize>("budget_tokens")?;
    options.thinking.gives_budget = options.thinking.budget.is_some();
    options.display = match fields.take::<String>("display")?.as_deref() {
        Some("omitted") => Display::Omitted,
        None | Some("summarized" | "updates") => Display::Text,
        Some(_) => return Err(ApiError::unsupported("thinking.display", "must be omitted or summarized")),
    };
    options.ignored.extend(fields.into_unused());
    Ok(())
}

/// Reads the format of an answer from the field at `path`.
pub(super) fn read_format(format: Value, path: &str) -> Result<Grammar, ApiError> {
    let mut fields = Fields::nested(path, format)?;
    let kind: String = required(&mut fields, "type")?;
    if kind != "json_schema" {
        let message = format!("is {kind:?}; it must be json_schema");
        return Err(ApiError::unsupported(fields.name("type"), message));
    }
    let schema: Value = required(&mut fields, "schema")?;
    fields.end()?;
    Ok(Grammar::JsonSchema(schema.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn options(request: &Value) -> Result<ThinkingOptions, ApiError> {
        read(&mut Fields::parse(request.to_string().as_bytes()).expect("an object"))
    }

    #[test]
    fn thinking_is_a_hint_and_off_unless_it_is_asked_for() {
        let effort = |effort, default_thinking| (Thinking::Effort(effort), default_thinking);
        let plain = |thinking| (thinking, Thinking::Auto);
        for (request, expected, display) in [
            (json!({}), plain(Thinking::Off), Display::Text),
            (json!({"thinking": {"type": "disabled"}}), plain(Thinking::Off), Display::Text),
            (json!({"thinking": {"type": "adaptive"}}), plain(Thinking::On), Display::Text),
            (
                json!({"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "low"}}),
                effort(Effort::Low, Thinking::On),
                Display::Omitted,
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 4000, "display": "updates"}, "output_config": {"effort": "max"}}),
                effort(Effort::High, Thinking::On),
                Display::Text,
            ),
            (
                json!({"output_config": {"effort": "medium"}}),
                effort(Effort::Medium, Thinking::Off),
                Display::Text,
            ),
            (
                json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}),
                plain(Thinking::Off),
                Display::Text,
            ),
        ] {
            let options = options(&request).expect("valid");
            let ThinkingRequest { thinking, default_thinking, field, .. } = options.thinking;
            assert_eq!(((thinking, default_thinking), options.display), (expected, display), "{request}");
            assert_eq!((field, options.ignored), (None, Vec::new()), "{request}");
        }
    }

    #[test]
    fn what_is_not_used_is_named() {
        let request = json!({
            "thinking": {"type": "enabled", "mood": 1},
            "output_config": {"effort": "heroic", "task_budget": {}},
        });
        let ignored = options(&request).expect("valid").ignored;
        assert_eq!(ignored, ["thinking.mood", "output_config.effort", "output_config.task_budget"]);
    }

    #[test]
    fn a_budget_belongs_to_the_thinking_that_is_asked_for() {
        for (thinking, budget) in [
            (json!({"type": "enabled", "budget_tokens": 1024}), Some(1024)),
            (json!({"type": "enabled", "budget_tokens": 0}), Some(0)),
            (json!({"type": "adaptive"}), None),
        ] {
            let options = options(&json!({"thinking": thinking})).expect("valid");
            assert_eq!((options.thinking.budget, options.ignored), (budget, Vec::new()));
        }
    }

    #[test]
    fn a_schema_is_a_constraint() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        let grammar = options(&json!({"output_config": {"format": format}})).expect("valid").grammar;
        assert_eq!(grammar, Some(Grammar::JsonSchema(json!({"type": "object"}).into())));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (request, param) in [
            (json!({"thinking": true}), "thinking"),
            (json!({"thinking": {}}), "thinking.type"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"thinking": {"type": "adaptive", "display": "all"}}), "thinking.display"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": "9"}}), "thinking.budget_tokens"),
            (json!({"output_config": {"effort": 5}}), "output_config.effort"),
            (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
            (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        ] {
            assert_eq!(options(&request).expect_err(param).param(), Some(param), "{request}");
        }
    }
}
