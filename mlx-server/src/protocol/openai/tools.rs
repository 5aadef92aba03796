//! The tools of a chat request, and which of them the model may or must call.

use chat_format::{Tool, ToolChoice, Tools};
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::ToSchema;

use crate::chat_request::ToolRequest;
use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::{Fields, field_group};

/// The most tools of a request.
pub(crate) const MOST: usize = 512;
/// The longest name of a tool.
const LONGEST_NAME: usize = 256;

field_group! {
    /// The tools of a chat, and which of them the model may or must call.
    pub(crate) struct ToolFields {
        /// The functions that the model may call.
        #[schema(value_type = Vec<ToolObject>)]
        pub(crate) tools: Value,
        /// `auto` (the default with tools), `none`, `required`, a function, or `allowed_tools`.
        #[schema(value_type = String, example = "none")]
        pub(crate) tool_choice: Value,
        /// Whether an answer may hold several calls; true unless given.
        #[schema(example = false)]
        pub(crate) parallel_tool_calls: bool,
    }
}

/// A function that the model may call.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `read_tool` reads")]
#[schema(examples(json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}})))]
pub(crate) struct ToolObject {
    /// Always `function`.
    #[schema(pattern = "^function$")]
    r#type: String,
    /// The function.
    function: FunctionObject,
}

/// A function.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes what `read_tool` reads")]
pub(crate) struct FunctionObject {
    /// Its name.
    name: String,
    /// What it does.
    description: Option<String>,
    /// The JSON schema of its arguments; without it, it has none.
    #[schema(value_type = Object)]
    parameters: Option<Value>,
    /// Whether the arguments must follow the schema.
    strict: Option<bool>,
}

/// Takes the fields of a request.
pub(super) fn read(fields: &mut Fields) -> Result<ToolRequest, ApiError> {
    let given = ToolFields::read(fields)?;
    let tools = tools(given.tools)?;
    let choice = match given.tool_choice {
        Some(choice) => choice_of(choice, &tools)?,
        None => ToolChoice::Auto,
    };
    let is_single = given.parallel_tool_calls == Some(false);
    Ok(ToolRequest { tools, choice, is_single })
}

/// These tools, of which the model may call any.
pub(crate) fn shown(list: Option<Value>) -> Result<ToolRequest, ApiError> {
    Ok(ToolRequest { tools: tools(list)?, ..ToolRequest::default() })
}

fn tools(tools: Option<Value>) -> Result<Tools, ApiError> {
    let tools = match tools {
        None => Vec::new(),
        Some(Value::Array(tools)) if tools.len() > MOST => {
            return Err(ApiError::field(
                "tools",
                format!("has {} tools; at most {MOST} are taken", tools.len()),
            ));
        }
        Some(Value::Array(tools)) => {
            let tools = tools.into_iter().enumerate();
            tools
                .map(|(index, tool)| read_tool(tool, &format!("tools[{index}]")))
                .collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(ApiError::field("tools", format!("is {}; it must be a list", kind(&other))));
        }
    };
    Ok(Tools::new(tools)?)
}

fn read_tool(tool: Value, place: &str) -> Result<Tool, ApiError> {
    let whole = tool.clone();
    let mut fields = Fields::inside(place, tool)?;
    fields.only("type", &[json!("function")], "only functions are offered")?;
    let function = fields.value("function");
    let function = function.ok_or_else(|| ApiError::field(fields.name("function"), "is missing"))?;
    fields.end()?;
    let mut function = Fields::inside(&format!("{place}.function"), function)?;
    let (name, place_of_name) = (function.take("name")?, function.name("name"));
    check_name(name, &place_of_name)?;
    function.take::<String>("description")?;
    function.take::<Map>("parameters")?;
    function.take::<bool>("strict")?;
    function.end()?;
    Tool::read(whole).map_err(|error| ApiError::from(error).renamed("tools", place))
}

/// The name of a tool. Formats of calls must be able to tell where it ends.
pub(crate) fn check_name(name: Option<String>, place: &str) -> Result<String, ApiError> {
    let name = name.ok_or_else(|| ApiError::field(place, "is missing"))?;
    let is_part = |letter: char| letter.is_alphanumeric() || "_-.:/".contains(letter);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_part) {
        let message = format!("must be at most {LONGEST_NAME} letters, digits and signs of _-.:/");
        return Err(ApiError::field(place, message));
    }
    Ok(name)
}

fn choice_of(choice: Value, tools: &Tools) -> Result<ToolChoice, ApiError> {
    let choice = match choice {
        Value::String(name) => match name.as_str() {
            "auto" => return Ok(ToolChoice::Auto),
            "none" => return Ok(ToolChoice::None),
            "required" => ToolChoice::Required,
            _ => {
                let message = "must be auto, none, required, a function or allowed_tools";
                return Err(ApiError::field("tool_choice", message));
            }
        },
        object => choice_object(object, tools)?,
    };
    if tools.list().is_empty() {
        return Err(ApiError::field("tool_choice", "demands a call, but there are no tools"));
    }
    Ok(choice)
}

fn choice_object(choice: Value, tools: &Tools) -> Result<ToolChoice, ApiError> {
    let mut fields = Fields::inside("tool_choice", choice)?;
    let kind: Option<String> = fields.take("type")?;
    let chosen = match kind.as_deref() {
        Some("function") => ToolChoice::Named(function_name(&mut fields, tools)?),
        Some("allowed_tools") => {
            let inner = fields.value("allowed_tools");
            let inner = inner.ok_or_else(|| ApiError::field("tool_choice.allowed_tools", "is missing"))?;
            allowed(Fields::inside("tool_choice.allowed_tools", inner)?, tools)?
        }
        Some(other) => {
            let message = format!("{other:?} is not supported: functions are the only tools");
            return Err(ApiError::unsupported("tool_choice.type", message));
        }
        None => return Err(ApiError::field("tool_choice.type", "is missing")),
    };
    fields.end()?;
    Ok(chosen)
}

fn allowed(mut fields: Fields, tools: &Tools) -> Result<ToolChoice, ApiError> {
    let mode: Option<String> = fields.take("mode")?;
    let is_required = match mode.as_deref() {
        Some("auto") => false,
        Some("required") => true,
        _ => return Err(ApiError::field(fields.name("mode"), "must be auto or required")),
    };
    let place = fields.name("tools");
    let Some(Value::Array(list)) = fields.value("tools").filter(|list| list != &json!([])) else {
        return Err(ApiError::field(place, "must be a list of at least one tool"));
    };
    fields.end()?;
    let name = |(index, tool): (usize, Value)| {
        let mut tool = Fields::inside(&format!("{place}[{index}]"), tool)?;
        tool.only("type", &[json!("function")], "only functions are offered")?;
        let name = function_name(&mut tool, tools)?;
        tool.end().map(|()| name)
    };
    let names = list.into_iter().enumerate().map(name).collect::<Result<_, ApiError>>()?;
    Ok(ToolChoice::Allowed { names, is_required })
}

/// The name in `{"function": {"name": …}}`, which must be that of a tool.
fn function_name(fields: &mut Fields, tools: &Tools) -> Result<String, ApiError> {
    let place = fields.name("function");
    let function = fields.value("function").ok_or_else(|| ApiError::field(place.clone(), "is missing"))?;
    let mut function = Fields::inside(&place, function)?;
    let name: Option<String> = function.take("name")?;
    let field = function.name("name");
    function.end()?;
    let name = name.ok_or_else(|| ApiError::field(field.clone(), "is missing"))?;
    if tools.get(&name).is_none() {
        return Err(ApiError::field(field, format!("is {name:?}, which is not among the tools")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read(request: &Value) -> Result<ToolRequest, ApiError> {
        super::read(&mut Fields::parse(request.to_string().as_bytes()).expect("an object"))
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn every_form_of_choice_is_read() {
        let named = json!({"type": "function", "function": {"name": "add"}});
        let allowed =
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}});
        for (choice, expected) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (named.clone(), ToolChoice::Named("add".into())),
            (allowed, ToolChoice::Allowed { names: vec!["add".into()], is_required: true }),
        ] {
            let request = json!({"tools": [tool("add"), tool("sub")], "tool_choice": choice});
            assert_eq!(read(&request).expect("valid").choice, expected, "{choice}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let (add, named) =
            (tool("add"), |name: &str| json!({"type": "function", "function": {"name": name}}));
        for (request, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [add, add]}), "tools"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (json!({"tools": [add, {"type": "function", "function": {}}]}), "tools[1].function.name"),
            (json!({"tools": [tool("a b")]}), "tools[0].function.name"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}),
                "tools[0].function.parameters",
            ),
            (
                json!({"tools": [{"type": "function", "function": {"name": "a", "mood": 1}}]}),
                "tools[0].function.mood",
            ),
            (json!({"tools": [add], "tool_choice": "any"}), "tool_choice"),
            (
                json!({"tools": [add], "tool_choice": {"type": "custom", "custom": {"name": "add"}}}),
                "tool_choice.type",
            ),
            (json!({"tools": [add], "tool_choice": named("sub")}), "tool_choice.function.name"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": [add], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}),
                "tool_choice.allowed_tools.tools",
            ),
            (json!({"tools": [add], "parallel_tool_calls": "no"}), "parallel_tool_calls"),
        ] {
            assert_eq!(read(&request).expect_err(param).param(), Some(param), "{request}");
        }
    }
}
