//! The tools of a chat request, and which of them the model may or must call.

use chat_format::{Tool, ToolChoice, Tools};
use mlx_json::{Map, Value};
use serde_json::json;
use utoipa::ToSchema;

use crate::chat_request::ToolRequest;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::content::PathNotation;
use crate::protocol::tools::{ToolChoiceFormat, list, take_name};

field_group! {
    /// The tools of a chat, and which of them the model may or must call.
    pub(crate) struct ToolFields {
        /// The functions that the model may call.
        #[schema(value_type = Vec<ToolObject>)]
        pub(crate) tools: Value,
        /// `auto` (the default with tools), `none`, `required`, a function, or `allowed_tools`.
        #[schema(value_type = String, example = "none")]
        pub(crate) tool_choice: Value,
        /// True (the default) allows several calls per answer.
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
    /// The name of the function.
    name: String,
    /// The description of the function.
    description: Option<String>,
    /// The JSON schema of the arguments. By default, the function has no arguments.
    #[schema(value_type = Object)]
    parameters: Option<Value>,
    /// True if the arguments must follow the schema.
    strict: Option<bool>,
}

/// Takes the fields of a request.
pub(super) fn read(fields: &mut Fields) -> Result<ToolRequest, ApiError> {
    let given = ToolFields::read(fields)?;
    let tools = tools(given.tools)?;
    let choice =
        given.tool_choice.map_or(Ok(ToolChoice::Auto), |it| ToolChoiceFormat::Chat.read(it, &tools))?;
    let is_single = given.parallel_tool_calls == Some(false);
    Ok(ToolRequest { tools, choice, is_single })
}

/// Reads tools without a `tool_choice`. The model may call any of them.
pub(crate) fn read_list(list: Option<Value>) -> Result<ToolRequest, ApiError> {
    Ok(ToolRequest { tools: tools(list)?, ..ToolRequest::default() })
}

fn tools(tools: Option<Value>) -> Result<Tools, ApiError> {
    let tools = list(tools, PathNotation::Brackets)?.into_iter().map(|(path, tool)| read_tool(tool, &path));
    Ok(Tools::new(tools.collect::<Result<_, _>>()?)?)
}

fn read_tool(tool: Value, path: &str) -> Result<Tool, ApiError> {
    let original = tool.clone();
    let mut fields = Fields::nested(path, tool)?;
    fields.expect_one_of("type", &[json!("function")], "use function")?;
    let function = fields.value("function");
    let function = function.ok_or_else(|| ApiError::field(fields.name("function"), "is missing"))?;
    fields.end()?;
    let mut function = Fields::nested(&format!("{path}.function"), function)?;
    take_name(&mut function)?;
    function.take::<String>("description")?;
    function.take::<Map>("parameters")?;
    function.take::<bool>("strict")?;
    function.end()?;
    Tool::read(original).map_err(|error| ApiError::from(error).rename_field("tools", path))
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
