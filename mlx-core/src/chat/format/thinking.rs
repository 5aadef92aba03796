//! Whether a model is asked to think, and how that is written for its template.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::OutputFormat;
use super::tables::{EFFORTS, SWITCHES};
use crate::error::{Error, Result};
use crate::text::ChatTemplate;

/// Whether a model is asked to think before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// As its template does by default.
    #[default]
    Auto,
    /// It thinks.
    On,
    /// It does not think; gpt-oss, which always does, thinks little.
    Off,
    /// It thinks so much; gpt-oss and a few others know the difference.
    Effort(Effort),
}

/// How much a model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Little.
    Low,
    /// The default of the models that know efforts.
    Medium,
    /// Much.
    High,
}

impl Effort {
    fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl FromStr for Thinking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "low" => Ok(Self::Effort(Effort::Low)),
            "medium" => Ok(Self::Effort(Effort::Medium)),
            "high" => Ok(Self::Effort(Effort::High)),
            _ => Err(format!("{text:?} must be on, off, auto, low, medium or high")),
        }
    }
}

impl Thinking {
    /// The variables that request this of a template, for a model with this output. A template without such a variable is an
    /// error, except for [`Thinking::Auto`], and for [`Thinking::On`] if the model marks its thoughts anyway.
    pub fn variables(self, template: &ChatTemplate, format: &OutputFormat) -> Result<Map<String, Value>> {
        let mut variables = Map::new();
        let switch = SWITCHES.iter().find(|switch| template.mentions(switch.sign));
        let missing = || Error::request("think", "the model's chat template cannot turn thinking on or off");
        let on = match self {
            Self::Auto => return Ok(variables),
            Self::Effort(effort) => {
                let Some(variable) = EFFORTS.into_iter().find(|name| template.mentions(name)) else {
                    let message =
                        "the model's chat template has no reasoning_effort; it may be on, off or auto";
                    return Err(Error::request("think", message));
                };
                variables.insert(variable.into(), effort.as_str().into());
                true
            }
            Self::On if switch.is_none() && format.has_thoughts() => return Ok(variables),
            Self::On => true,
            Self::Off => false,
        };
        let switch = switch.ok_or_else(missing)?;
        if !variables.contains_key(switch.variable) {
            let value = if on { switch.on } else { switch.off };
            variables.insert(switch.variable.into(), value.into());
        }
        Ok(variables)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variables(source: &str, thinking: &str) -> Result<Value, String> {
        let template = ChatTemplate::from_source(source, Map::new()).expect("it compiles");
        let thinking: Thinking = thinking.parse()?;
        let format = OutputFormat::spelled(&template);
        thinking.variables(&template, &format).map(Value::Object).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_gets_the_variable_that_it_knows() {
        for (source, thinking, expected) in [
            ("{% if enable_thinking %}{% endif %}", "on", json!({"enable_thinking": true})),
            ("{% if enable_thinking %}{% endif %}", "off", json!({"enable_thinking": false})),
            ("{{ reasoning_effort }}", "off", json!({"reasoning_effort": "low"})),
            ("{{ reasoning_effort }}", "high", json!({"reasoning_effort": "high"})),
            (
                "{{ reasoning_effort }}{{ enable_thinking }}",
                "low",
                json!({"reasoning_effort": "low", "enable_thinking": true}),
            ),
            ("{{ reasoning_strength }}", "medium", json!({"reasoning_strength": "medium"})),
            ("{{ reasoning_strength }}", "off", json!({"reasoning_strength": "low"})),
            (
                "{% if reasoning_effort == 'no_think' %}{% endif %}",
                "off",
                json!({"reasoning_effort": "no_think"}),
            ),
            ("{% if thinking %}{% endif %}", "on", json!({"thinking": true})),
            ("{{ thinking_budget }}", "off", json!({"thinking_budget": 0})),
            ("plain", "auto", json!({})),
            ("{% if add_generation_prompt %}<think>{% endif %}", "on", json!({})),
        ] {
            assert_eq!(variables(source, thinking), Ok(expected), "{source}");
        }
        assert!(variables("plain", "off").expect_err("no switch").contains("think"));
        assert!(variables("plain", "on").expect_err("no thoughts").contains("think"));
        assert!(variables("always <think>", "off").expect_err("no switch").contains("think"));
        assert!(
            variables("{{ enable_thinking }}", "high").expect_err("no effort").contains("reasoning_effort")
        );
        assert!(variables("plain", "maybe").expect_err("no such word").contains("maybe"));
    }
}
