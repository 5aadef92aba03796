//! Shared reading of tools: the list, names, and the choice of a tool.

use chat_format::{Tool, ToolChoice, Tools};
use mlx_json::{Map, Value};
use serde_json::json;

use super::content::PathNotation;
use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::Fields;

/// The maximum number of tools per request.
pub(crate) const MAX_TOOLS: usize = 512;
/// The maximum length of a tool's name in bytes.
const MAX_NAME_LEN: usize = 256;
/// The separator between a namespace and a function name, for the model.
const NAMESPACE_SEPARATOR: &str = "__";

/// Returns the items of `tools`, each with its path in the request.
pub(crate) fn list(tools: Option<Value>, notation: PathNotation) -> Result<Vec<(String, Value)>, ApiError> {
    match tools {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() > MAX_TOOLS => {
            let message = format!("has {} tools; at most {MAX_TOOLS} are allowed", list.len());
            Err(ApiError::field("tools", message))
        }
        Some(Value::Array(list)) => Ok(notation.items("tools", list).collect()),
        Some(other) => Err(ApiError::field("tools", format!("is {}; it must be a list", kind(&other)))),
    }
}

/// Takes and checks the name of a tool.
pub(crate) fn take_name(fields: &mut Fields) -> Result<String, ApiError> {
    let path = fields.name("name");
    check_name(fields.take("name")?, &path)
}

/// Checks the name of a tool. Parsers of tool calls must be able to find its end.
pub(crate) fn check_name(name: Option<String>, path: &str) -> Result<String, ApiError> {
    let name = name.ok_or_else(|| ApiError::field(path, "is missing"))?;
    let is_part = |ch: char| ch.is_alphanumeric() || "_-.:/".contains(ch);
    if name.is_empty() || name.len() > MAX_NAME_LEN || !name.chars().all(is_part) {
        let message =
            format!("must be 1 to {MAX_NAME_LEN} bytes of letters, digits and the characters _-.:/");
        return Err(ApiError::field(path, message));
    }
    Ok(name)
}

/// Returns the name of a function in a namespace, in the form that the model sees.
pub(crate) fn qualified(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{NAMESPACE_SEPARATOR}{name}"))
}

/// A function from a protocol with a format other than that of OpenAI's chats.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// The JSON schema of the arguments.
    pub(crate) parameters: Map,
    pub(crate) is_strict: bool,
    pub(crate) is_deferred: bool,
}

impl Function {
    /// Returns the function in the form that templates expect. Errors name `path`.
    pub(crate) fn tool(self, path: &str) -> Result<Tool, ApiError> {
        let description = self.description.map(|text| ("description", text.into()));
        let entries =
            [Some(("name", self.name.into())), description, Some(("parameters", self.parameters.into()))];
        let strict = self.is_strict.then(|| ("strict", true.into()));
        let function: Value = entries.into_iter().chain([strict]).flatten().collect();
        let tool = Tool::read(Value::object([("type", "function".into()), ("function", function)]));
        let tool = tool.map_err(|error| ApiError::from(error).rename_field("tools", path))?;
        Ok(Tool { is_deferred: self.is_deferred, ..tool })
    }
}

/// The format of `tool_choice` in one of OpenAI's APIs.
#[derive(Clone, Copy)]
pub(crate) enum ToolChoiceFormat {
    /// Chat completions: `{"type": "function", "function": {"name": …}}`.
    Chat,
    /// Responses: `{"type": "function", "name": …, "namespace": …}`, also for custom tools.
    Responses,
}

impl ToolChoiceFormat {
    /// Reads a choice among these tools.
    pub(crate) fn read(self, choice: Value, tools: &Tools) -> Result<ToolChoice, ApiError> {
        let choice = match choice {
            Value::String(name) => match name.as_str() {
                "auto" => return Ok(ToolChoice::Auto),
                "none" => return Ok(ToolChoice::None),
                "required" => ToolChoice::Required,
                _ => {
                    let others = self.kinds().join(", ");
                    let message = format!(
                        "must be auto, none, required, or an object of type {others} or allowed_tools"
                    );
                    return Err(ApiError::field("tool_choice", message));
                }
            },
            object => self.object(object, tools)?,
        };
        expect_tools(tools)?;
        Ok(choice)
    }

    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["function"],
            Self::Responses => &["function", "custom"],
        }
    }

    fn object(self, choice: Value, tools: &Tools) -> Result<ToolChoice, ApiError> {
        let mut fields = Fields::nested("tool_choice", choice)?;
        let kind: Option<String> = fields.take("type")?;
        let chosen = match (kind.as_deref(), self) {
            (Some(kind), _) if self.kinds().contains(&kind) => {
                ToolChoice::Named(self.name(&mut fields, tools)?)
            }
            (Some("allowed_tools"), Self::Responses) => self.allowed(&mut fields, tools)?,
            (Some("allowed_tools"), Self::Chat) => {
                let inner = fields.value("allowed_tools");
                let inner =
                    inner.ok_or_else(|| ApiError::field("tool_choice.allowed_tools", "is missing"))?;
                let mut inner = Fields::nested("tool_choice.allowed_tools", inner)?;
                let allowed = self.allowed(&mut inner, tools)?;
                inner.end()?;
                allowed
            }
            (Some(other), _) => {
                let message = format!("{other:?} is not supported; use {}", self.kinds().join(" or "));
                return Err(ApiError::unsupported("tool_choice.type", message));
            }
            (None, _) => return Err(ApiError::field("tool_choice.type", "is missing")),
        };
        fields.end()?;
        Ok(chosen)
    }

    fn allowed(self, fields: &mut Fields, tools: &Tools) -> Result<ToolChoice, ApiError> {
        let mode: Option<String> = fields.take("mode")?;
        let is_required = match (mode.as_deref(), self) {
            (Some("auto"), _) | (None, Self::Responses) => false,
            (Some("required"), _) => true,
            _ => return Err(ApiError::field(fields.name("mode"), "must be auto or required")),
        };
        let path = fields.name("tools");
        let Some(Value::Array(list)) = fields.value("tools").filter(|list| *list != json!([])) else {
            return Err(ApiError::field(path, "must be a list of at least one tool"));
        };
        let kinds: Vec<_> = self.kinds().iter().map(|kind| json!(kind)).collect();
        let name = |(path, tool): (String, Value)| {
            let mut tool = Fields::nested(&path, tool)?;
            tool.expect_one_of("type", &kinds, "name a tool of the request")?;
            let name = self.name(&mut tool, tools)?;
            tool.end().map(|()| name)
        };
        let names = PathNotation::Brackets.items(&path, list).map(name).collect::<Result<_, ApiError>>()?;
        Ok(ToolChoice::Allowed { names, is_required })
    }

    /// Takes the name of a tool, which must exist. Returns it in the form that the model sees.
    fn name(self, fields: &mut Fields, tools: &Tools) -> Result<String, ApiError> {
        match self {
            Self::Chat => {
                let path = fields.name("function");
                let function =
                    fields.value("function").ok_or_else(|| ApiError::field(path.clone(), "is missing"))?;
                let mut function = Fields::nested(&path, function)?;
                let name = known_name(&mut function, None, tools)?;
                function.end()?;
                Ok(name)
            }
            Self::Responses => {
                let namespace: Option<String> = fields.take("namespace")?;
                known_name(fields, namespace.as_deref(), tools)
            }
        }
    }
}

fn known_name(fields: &mut Fields, namespace: Option<&str>, tools: &Tools) -> Result<String, ApiError> {
    let path = fields.name("name");
    let name: Option<String> = fields.take("name")?;
    let name = name.ok_or_else(|| ApiError::field(path.clone(), "is missing"))?;
    let qualified = qualified(namespace, &name);
    if tools.get(&qualified).is_none() {
        return Err(ApiError::field(path, format!("is {name:?}, which is not among the tools")));
    }
    Ok(qualified)
}

/// Rejects a choice that requires a call if there are no tools.
pub(crate) fn expect_tools(tools: &Tools) -> Result<(), ApiError> {
    if tools.list().is_empty() {
        return Err(ApiError::field("tool_choice", "requires a call, but there are no tools"));
    }
    Ok(())
}
