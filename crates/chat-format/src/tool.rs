//! Tools in the format of OpenAI's API, and the choice of tools that a model may or must call.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use mlx_json::Value;

use super::format::spaced_json;
use super::json_type::JsonTypes;
use crate::error::{Error, Result};

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name of the tool.
    pub name: String,
    /// The JSON schema of its arguments. An empty object allows any arguments.
    pub parameters: serde_json::Value,
    /// True if arguments must follow the schema.
    pub is_strict: bool,
    /// True if the tool was added after the conversation began. Its definition is then shown where a message refers to
    /// it: at the beginning of the prompt it would change the whole prompt.
    pub is_deferred: bool,
    /// The complete tool, as chat templates see it.
    pub json: Value,
}

impl Tool {
    /// Parses a tool of the form `{"type": "function", "function": {"name": …, "parameters": …}}`.
    pub fn read(json: impl Into<Value>) -> Result<Self> {
        let json: Value = json.into();
        let wrong = |message: &str| Error::request("tools", message);
        if json["type"].as_str().is_some_and(|kind| kind != "function") {
            return Err(wrong("contain a tool whose type is not function"));
        }
        let function = json.get("function").filter(|function| function.as_object().is_some());
        let function = function.ok_or_else(|| wrong("contain a tool without a function"))?;
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong("contain a function without a name"))?.to_owned();
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => serde_json::Map::new().into(),
            Some(parameters @ Value::Object(_)) => parameters.clone().into(),
            Some(_) => return Err(wrong("contain a function whose parameters are not a JSON schema")),
        };
        let is_strict = function["strict"].as_bool().unwrap_or(false);
        Ok(Self { name, parameters, is_strict, is_deferred: false, json })
    }

    /// Returns its definition on one line, in the style of templates. Messages that refer to a deferred tool contain
    /// it.
    pub fn definition(&self) -> String {
        spaced_json(&self.json)
    }
}

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools(Arc<[Tool]>);

impl Tools {
    /// Creates a list of tools. Duplicate names are an error.
    pub fn new(tools: Vec<Tool>) -> Result<Self> {
        let is_repeated =
            |(index, tool): &(usize, &Tool)| tools[..*index].iter().any(|other| other.name == tool.name);
        if let Some((_, tool)) = tools.iter().enumerate().find(is_repeated) {
            return Err(Error::request("tools", format!("contain two tools named {:?}", tool.name)));
        }
        Ok(Self(tools.into()))
    }

    /// Returns all tools.
    pub fn list(&self) -> &[Tool] {
        &self.0
    }

    /// Returns the tools for the beginning of the prompt ([`TemplateInput::tools`](crate::TemplateInput::tools)): all
    /// that are not deferred. Returns `None` if there are none.
    pub fn shown(&self) -> Option<Vec<Value>> {
        let shown = self.0.iter().filter(|tool| !tool.is_deferred).map(|tool| tool.json.clone());
        Some(shown.collect()).filter(|shown: &Vec<Value>| !shown.is_empty())
    }

    /// Returns the tool with this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// Returns true if the tools are shown to the model.
    pub fn are_shown(&self, choice: &ToolChoice) -> bool {
        !self.0.is_empty() && *choice != ToolChoice::None
    }

    /// Returns the tools for a chat template.
    pub fn for_template(&self, choice: &ToolChoice) -> Option<Vec<Value>> {
        if self.are_shown(choice) { self.shown() } else { None }
    }

    /// Returns the types that an argument may have; none if they are unknown.
    pub(super) fn types_of(&self, tool: &str, argument: &str) -> JsonTypes {
        self.get(tool).map_or(JsonTypes::NONE, |tool| JsonTypes::of_property(&tool.parameters, argument))
    }
}

/// The tools that a model may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any tool, or none.
    #[default]
    Auto,
    /// No tool. The model does not see any.
    None,
    /// At least one tool.
    Required,
    /// Exactly this tool.
    Named(String),
    /// Some of the tools.
    Allowed {
        /// The names of the allowed tools.
        names: Vec<String>,
        /// True if at least one must be called.
        is_required: bool,
    },
}

/// Returns a globally unique id of 24 random letters and digits.
pub fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    let digit = |number: u64| char::from_digit((number % 36) as u32, 36).unwrap_or('0');
    let digits = |number: u64| {
        (0..12).scan(number, move |rest, _| {
            let digit = digit(*rest);
            *rest /= 36;
            Some(digit)
        })
    };
    digits(random()).chain(digits(random())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deferred_tools_are_known_but_not_shown() {
        let read = |name: &str| Tool::read(json!({"type": "function", "function": {"name": name}}));
        let (early, late) = (read("add").expect("valid"), read("sub").expect("valid"));
        let late = Tool { is_deferred: true, ..late };
        let tools = Tools::new(vec![early.clone(), late.clone()]).expect("two names");
        assert_eq!(tools.shown(), Some(vec![early.json]));
        assert_eq!(tools.get("sub"), Some(&late));
        assert_eq!(late.definition(), r#"{"type": "function", "function": {"name": "sub"}}"#);
        assert_eq!(Tools::new(vec![late]).expect("one").shown(), None, "the same as without tools");
    }
}
