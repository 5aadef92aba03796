//! Tools that a model may call, in the form of OpenAI's API, and which of them it may or must call.

use std::sync::Arc;

use serde_json::Value;

use super::json_type::JsonTypes;
use crate::error::{Error, Result};

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; an empty object allows any.
    pub parameters: Value,
    /// Whether arguments must follow the schema.
    pub is_strict: bool,
    /// All of it, as a chat template sees it.
    pub json: Value,
}

impl Tool {
    /// Reads a tool of the form `{"type": "function", "function": {"name": …, "parameters": …}}`.
    pub fn read(json: Value) -> Result<Self> {
        let wrong = |message: &str| Error::request("tools", message);
        if json["type"].as_str().is_some_and(|kind| kind != "function") {
            return Err(wrong("holds a tool whose type is not function"));
        }
        let function = json.get("function").filter(|function| function.is_object());
        let function = function.ok_or_else(|| wrong("holds a tool without a function"))?;
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong("holds a function without a name"))?.to_owned();
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
            Some(parameters @ Value::Object(_)) => parameters.clone(),
            Some(_) => return Err(wrong("holds a function whose parameters are no JSON schema")),
        };
        let is_strict = function["strict"].as_bool().unwrap_or(false);
        Ok(Self { name, parameters, is_strict, json })
    }
}

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools(Arc<[Tool]>);

impl Tools {
    /// These tools; two of one name are refused.
    pub fn new(tools: Vec<Tool>) -> Result<Self> {
        let is_repeated =
            |(index, tool): &(usize, &Tool)| tools[..*index].iter().any(|other| other.name == tool.name);
        if let Some((_, tool)) = tools.iter().enumerate().find(is_repeated) {
            return Err(Error::request("tools", format!("holds two tools that are called {:?}", tool.name)));
        }
        Ok(Self(tools.into()))
    }

    /// All of them.
    pub fn list(&self) -> &[Tool] {
        &self.0
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// The types that an argument may have; none if nothing says so.
    pub(super) fn types_of(&self, tool: &str, argument: &str) -> JsonTypes {
        self.get(tool).map_or(JsonTypes::NONE, |tool| JsonTypes::of_property(&tool.parameters, argument))
    }
}

/// Which tools a model may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any, or none.
    #[default]
    Auto,
    /// None: it is not shown any.
    None,
    /// At least one.
    Required,
    /// Exactly this one.
    Named(String),
    /// Some of them.
    Allowed {
        /// Their names.
        names: Vec<String>,
        /// Whether at least one must be called.
        is_required: bool,
    },
}
