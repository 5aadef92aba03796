//! The thinking setting of a request, and the template variables for it.

use std::str::FromStr;

use mlx_json::Map;

use super::OutputFormat;
use super::tables::{EFFORTS, SWITCHES, Setting, Switch};
use crate::ChatTemplate;
use crate::error::{Error, Result};

/// The thinking setting of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// The default of the template.
    #[default]
    Auto,
    /// Thinking is on.
    On,
    /// Thinking is off. Models that always think, such as gpt-oss, use the lowest effort.
    Off,
    /// Thinking with this effort. Only gpt-oss and a few others distinguish efforts.
    Effort(Effort),
}

/// The amount of thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Low effort.
    Low,
    /// The default of models with efforts.
    Medium,
    /// High effort.
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
    /// Returns the template variables for this setting, for a model with this output format. It is an error if the
    /// template has no such variable, except for [`Thinking::Auto`], and for [`Thinking::On`] if the model marks its
    /// thoughts anyway.
    pub fn variables(self, template: &ChatTemplate, format: &OutputFormat) -> Result<Map> {
        if let Some(cause) = self.obstacle(template, format) {
            let words = [("on", Self::On), ("off", Self::Off), ("auto", Self::Auto)];
            let others = Self::accepted(template, format, &words);
            return Err(Error::request("think", format!("{cause}; it may be {}", others.join(" or "))));
        }
        let mut variables = Map::new();
        if let (Self::Effort(effort), Some(variable)) = (self, effort_of(template)) {
            variables.insert(variable.into(), effort.as_str().into());
        }
        if let Some(switch) = switch_of(template)
            && self != Self::Auto
            && !variables.contains_key(switch.variable)
        {
            let value = if self == Self::Off { switch.off } else { switch.on };
            variables.insert(switch.variable.into(), value.into());
        }
        Ok(variables)
    }

    /// Returns the variables of this setting with a budget of thought tokens. A template that knows budgets gets it. Without tokens, thinking is
    /// off if the template can turn it off.
    pub fn variables_within(
        self,
        budget: Option<usize>,
        template: &ChatTemplate,
        format: &OutputFormat,
    ) -> Result<Map> {
        if (self, budget) == (Self::Auto, Some(0)) {
            return Ok(Self::Off.variables(template, format).unwrap_or_default());
        }
        let mut variables = self.variables(template, format)?;
        if let Some(budget) = budget
            && self != Self::Off
            && let Some(Switch { variable, on: Setting::Tokens(_), .. }) = switch_of(template)
        {
            variables.insert((*variable).into(), budget.into());
        }
        Ok(variables)
    }

    /// Returns the reason if the template cannot apply it.
    pub fn obstacle(self, template: &ChatTemplate, format: &OutputFormat) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::On if format.has_thoughts() => None,
            _ if switch_of(template).is_none() => {
                Some("the model's chat template cannot turn thinking on or off")
            }
            Self::Effort(_) if effort_of(template).is_none() => {
                Some("the model's chat template has no reasoning_effort")
            }
            _ => None,
        }
    }

    /// Returns the words that the template can apply.
    pub fn accepted<'a>(
        template: &ChatTemplate,
        format: &OutputFormat,
        words: &[(&'a str, Self)],
    ) -> Vec<&'a str> {
        words
            .iter()
            .filter(|(_, it)| it.obstacle(template, format).is_none())
            .map(|(word, _)| *word)
            .collect()
    }
}

fn switch_of(template: &ChatTemplate) -> Option<&'static Switch> {
    SWITCHES.iter().find(|switch| template.mentions(switch.sign))
}

/// Returns the template's variable for the effort.
fn effort_of(template: &ChatTemplate) -> Option<&'static str> {
    EFFORTS.into_iter().find(|name| template.mentions(name))
}

#[cfg(test)]
mod tests {
    use mlx_json::Value;
    use serde_json::json;

    use super::*;

    fn variables(source: &str, thinking: &str) -> Result<Value, String> {
        let template = ChatTemplate::from_source(source, serde_json::Map::new()).expect("it compiles");
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
            assert_eq!(variables(source, thinking), Ok(expected.into()), "{source}");
        }
    }

    #[test]
    fn a_refusal_proposes_only_what_the_template_takes() {
        for (source, thinking, end) in [
            ("plain", "off", "cannot turn thinking on or off; it may be auto"),
            ("plain", "on", "cannot turn thinking on or off; it may be auto"),
            ("plain", "low", "cannot turn thinking on or off; it may be auto"),
            ("{% if add_generation_prompt %}<think>{% endif %}", "off", "on or off; it may be on or auto"),
            ("{{ enable_thinking }}", "high", "has no reasoning_effort; it may be on or off or auto"),
        ] {
            let error = variables(source, thinking).expect_err("it has no such variable");
            assert!(error.starts_with("think: ") && error.ends_with(end), "{error}");
            for word in ["on", "off", "auto"] {
                let is_proposed =
                    error.rsplit("it may be ").next().is_some_and(|others| others.contains(word));
                assert_eq!(is_proposed, variables(source, word).is_ok(), "{word} in {error}");
            }
        }
        assert!(variables("plain", "maybe").expect_err("no such word").contains("maybe"));
    }
}
