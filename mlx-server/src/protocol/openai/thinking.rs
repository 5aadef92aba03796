//! The fields of a chat about thoughts: the effort, and the budget under the names of several servers.

use mlx_json::Value;
use serde_json::json;

use crate::chat_request::ThinkingRequest;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};

field_group! {
    /// Thoughts before the answer.
    pub(crate) struct ThinkingFields {
        /// Reasoning effort: none, minimal, low, medium or high, as far as the model's template supports it.
        #[schema(pattern = "^(none|minimal|low|medium|high)$", example = "low")]
        pub(crate) reasoning_effort: String,
        /// `max_tokens` is `thinking_budget`, `effort` is `reasoning_effort`; `enabled` turns thinking on or off. OpenRouter's object.
        #[schema(value_type = Object, example = json!({"max_tokens": 100}))]
        pub(crate) reasoning: Value,
        /// Maximum number of tokens in thoughts. Then the thought is closed and the answer begins. 0: no thoughts; -1: no limit.
        #[schema(minimum = -1, example = 100)]
        pub(crate) thinking_budget: i64,
        /// llama-server's name of `thinking_budget`.
        #[schema(minimum = -1, example = 100)]
        pub(crate) thinking_budget_tokens: i64,
        /// llama-server's newer name of `thinking_budget`.
        #[schema(minimum = -1, example = 100)]
        pub(crate) reasoning_budget_tokens: i64,
        /// vLLM's name of `thinking_budget`.
        #[schema(minimum = -1, example = 100)]
        pub(crate) thinking_token_budget: i64,
    }
}

/// Takes the fields. If several names of one value are given, they must be equal.
pub(super) fn read(fields: &mut Fields) -> Result<ThinkingRequest, ApiError> {
    let given = ThinkingFields::read(fields)?;
    let nested = given.reasoning.map_or(Ok(Nested::default()), nested)?;
    let effort = one_of([("reasoning_effort", given.reasoning_effort), ("reasoning.effort", nested.effort)])?;
    let budget = one_of([
        ("thinking_budget", given.thinking_budget),
        ("thinking_budget_tokens", given.thinking_budget_tokens),
        ("reasoning_budget_tokens", given.reasoning_budget_tokens),
        ("thinking_token_budget", given.thinking_token_budget),
        ("reasoning.max_tokens", nested.max_tokens),
    ])?;
    let gives_budget = budget.is_some();
    let budget = budget.map_or(Ok(None), |(name, tokens)| read_budget(name, tokens))?;
    let (name, effort) = match (effort, nested.enabled) {
        (Some((name, effort)), Some(false)) if effort != "none" => {
            return Err(ApiError::field(name, "is given although reasoning.enabled is false"));
        }
        (Some(effort), _) => (effort.0, Some(effort.1)),
        (None, Some(false)) => ("reasoning.enabled", Some("none".to_owned())),
        (None, Some(true)) => {
            let on = ThinkingRequest::on("reasoning.enabled");
            return Ok(ThinkingRequest { budget, gives_budget, ..on });
        }
        (None, None) => ("reasoning_effort", None),
    };
    let thinking = ThinkingRequest::required_effort(effort.as_deref(), name)?;
    Ok(ThinkingRequest { budget, gives_budget, ..thinking })
}

/// Reads a budget of thought tokens. -1 means no limit.
pub(crate) fn read_budget(name: &str, tokens: i64) -> Result<Option<usize>, ApiError> {
    match tokens {
        -1 => Ok(None),
        _ => usize::try_from(tokens).map(Some).map_err(|_| {
            ApiError::field(name, format!("is {tokens}; it must be at least 0, or -1 for no limit"))
        }),
    }
}

/// The fields of `reasoning`.
#[derive(Default)]
struct Nested {
    effort: Option<String>,
    max_tokens: Option<i64>,
    enabled: Option<bool>,
}

fn nested(reasoning: Value) -> Result<Nested, ApiError> {
    let mut fields = Fields::nested("reasoning", reasoning)?;
    let nested = Nested {
        effort: fields.take("effort")?,
        max_tokens: fields.take("max_tokens")?,
        enabled: fields.take("enabled")?,
    };
    fields.expect_one_of("exclude", &[json!(false)], "thoughts are always returned; leave it out")?;
    fields.end()?;
    Ok(nested)
}

/// Returns the given value and its name. Different values are an error.
fn one_of<T: PartialEq + std::fmt::Display, const N: usize>(
    values: [(&'static str, Option<T>); N],
) -> Result<Option<(&'static str, T)>, ApiError> {
    let mut given = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let Some((first, value)) = given.next() else { return Ok(None) };
    match given.find(|(_, other)| *other != value) {
        None => Ok(Some((first, value))),
        Some((name, other)) => {
            let message = format!("is {other}, but {first} is {value}; give one of them");
            Err(ApiError::field(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use chat_format::{Effort, Thinking};

    use super::*;

    fn asked(request: &serde_json::Value) -> Result<ThinkingRequest, ApiError> {
        read(&mut Fields::parse(request.to_string().as_bytes()).expect("an object"))
    }

    #[test]
    fn a_budget_has_the_names_of_other_servers() {
        let names =
            ["thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"];
        for name in names {
            for (tokens, budget) in [(7, Some(7)), (0, Some(0)), (-1, None)] {
                let request = asked(&json!({name: tokens})).expect("valid");
                assert_eq!((request.thinking, request.budget), (Thinking::Auto, budget), "{name}: {tokens}");
            }
            assert_eq!(asked(&json!({name: -2})).expect_err("too small").param(), Some(name));
        }
        let both = json!({"thinking_budget": 5, "reasoning": {"max_tokens": 5, "effort": "low"}});
        let both = asked(&both).expect("they are equal");
        assert_eq!((both.thinking, both.budget), (Thinking::Effort(Effort::Low), Some(5)));
        let on = asked(&json!({"reasoning": {"enabled": true, "max_tokens": 5}})).expect("valid");
        assert_eq!((on.thinking, on.field), (Thinking::On, Some("reasoning.enabled")));
        let off = asked(&json!({"reasoning": {"enabled": false}})).expect("valid");
        assert_eq!((off.thinking, off.budget), (Thinking::Off, None));
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        for (request, param) in [
            (json!({"thinking_budget": 5, "thinking_token_budget": 6}), "thinking_token_budget"),
            (json!({"thinking_budget": 5, "reasoning": {"max_tokens": 6}}), "reasoning.max_tokens"),
            (json!({"reasoning_effort": "low", "reasoning": {"effort": "high"}}), "reasoning.effort"),
            (json!({"reasoning": {"effort": "high", "enabled": false}}), "reasoning.effort"),
            (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
            (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
            (json!({"reasoning": {"mood": 1}}), "reasoning.mood"),
            (json!({"reasoning": 5}), "reasoning"),
        ] {
            assert_eq!(asked(&request).expect_err(param).param(), Some(param), "{request}");
        }
    }
}
