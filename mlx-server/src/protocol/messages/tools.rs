//! The tools of a request, and which of them the model may or must call.

use chat_format::{Tool, ToolChoice, Tools};
use mlx_json::{Map, Value};

use super::block::required;
use crate::chat_request::ToolRequest;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::protocol::content::PathNotation;
use crate::protocol::tools::{Function, check_name, expect_tools, list};

field_group! {
    /// The tools of a conversation, and which of them the model may or must call.
    pub(crate) struct ToolFields {
        /// The tools that the model may call. Tools that run on Anthropic's servers are not offered, but listed in `x-ignored-fields`.
        #[schema(value_type = Vec<ToolDefinition>)]
        pub(crate) tools: Value,
        /// `auto` (the default), `any`, `tool` with a `name`, or `none`. With `disable_parallel_tool_use` an answer has at most one call.
        #[schema(value_type = Object)]
        pub(crate) tool_choice: Value,
    }
}

field_group! {
    /// A tool that the model may call. Tools with a `type` other than `custom` are not offered.
    #[schema(examples(json!({"name": "add", "input_schema": {"type": "object"}})))]
    pub(crate) struct ToolDefinition {
        /// The name of the tool.
        #[schema(required = true)]
        pub(crate) name: String,
        /// The description of the tool.
        pub(crate) description: String,
        /// The JSON schema of the input.
        #[schema(required = true, value_type = Object)]
        pub(crate) input_schema: Map<String, Value>,
        /// Example inputs. The model sees them as `examples` of the schema.
        #[schema(value_type = Vec<Object>)]
        pub(crate) input_examples: Value,
        /// True if the input must follow the schema.
        pub(crate) strict: bool,
        /// True to leave the tool out of the initial prompt. The model then sees it when a tool result refers to it.
        pub(crate) defer_loading: bool,
        /// Not used, since only the model calls tools. A tool without `direct` is not offered.
        pub(crate) allowed_callers: Vec<String>,
        /// Not used: prefix caching is automatic.
        #[schema(value_type = Object)]
        pub(crate) cache_control: Value,
        /// Not used: input is always streamed as it is generated.
        pub(crate) eager_input_streaming: bool,
    }
}

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RequestTools {
    /// The tools for the model.
    pub(super) request: ToolRequest,
    /// The paths of tools that are not offered.
    pub(super) ignored: Vec<String>,
}

/// Takes the fields of a request.
pub(super) fn read(fields: &mut Fields) -> Result<RequestTools, ApiError> {
    let given = ToolFields::read(fields)?;
    let (mut tools, mut ignored) = (Vec::new(), Vec::new());
    for (path, tool) in list(given.tools, PathNotation::Dots)? {
        match read_tool(tool, &path)? {
            Some(tool) => tools.push(tool),
            None => ignored.push(path),
        }
    }
    let tools = Tools::new(tools)?;
    let (choice, is_single) = match given.tool_choice {
        Some(choice) => read_choice(choice, &tools)?,
        None => (ToolChoice::Auto, false),
    };
    Ok(RequestTools { request: ToolRequest { tools, choice, is_single }, ignored })
}

/// Reads a tool. `None` for a tool that the model cannot call.
fn read_tool(tool: Value, path: &str) -> Result<Option<Tool>, ApiError> {
    let mut fields = Fields::nested(path, tool)?;
    if fields.value("type").is_some_and(|kind| kind != "custom") {
        return Ok(None);
    }
    let given = ToolDefinition::read(&mut fields)?;
    let name = check_name(given.name, &fields.name("name"))?;
    let parameters = given.input_schema;
    let mut parameters = parameters
        .ok_or_else(|| ApiError::field(fields.name("input_schema"), "is missing; give a JSON schema"))?;
    fields.end()?;
    if given.allowed_callers.is_some_and(|callers| !callers.iter().any(|caller| caller == "direct")) {
        return Ok(None);
    }
    parameters.extend(given.input_examples.map(|examples| ("examples".to_owned(), examples)));
    let function = Function {
        name,
        description: given.description,
        parameters,
        is_strict: false,
        is_deferred: given.defer_loading.unwrap_or(false),
    };
    let tool = function.tool(path)?;
    // The template must not see that the input is strict.
    Ok(Some(Tool { is_strict: given.strict.unwrap_or(false), ..tool }))
}

fn read_choice(choice: Value, tools: &Tools) -> Result<(ToolChoice, bool), ApiError> {
    let mut fields = Fields::nested("tool_choice", choice)?;
    let kind: String = required(&mut fields, "type")?;
    let chosen = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => {
            expect_tools(tools)?;
            ToolChoice::Required
        }
        "tool" => {
            let name: String = required(&mut fields, "name")?;
            if tools.get(&name).is_none() {
                let message = format!("is {name:?}, but tools has no such tool that the model can call");
                return Err(ApiError::field("tool_choice.name", message));
            }
            ToolChoice::Named(name)
        }
        _ => return Err(ApiError::field("tool_choice.type", "must be auto, any, tool or none")),
    };
    let is_single = fields.take("disable_parallel_tool_use")?.unwrap_or(false);
    fields.end()?;
    Ok((chosen, is_single))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read_json(request: &Value) -> Result<RequestTools, ApiError> {
        read(&mut Fields::parse(request.to_string().as_bytes()).expect("an object"))
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "input_schema": {"type": "object"}})
    }

    #[test]
    fn tools_become_functions() {
        let whole = json!({
            "type": "custom", "name": "add", "description": "Adds.", "input_schema": {"type": "object"},
            "input_examples": [{"a": 1}], "strict": true, "defer_loading": true,
            "allowed_callers": ["direct", "code_execution_20250825"],
            "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true,
        });
        let tools = read_json(&json!({"tools": [whole, tool("sub")]})).expect("valid").request.tools;
        let [add, sub] = tools.list() else { panic!("two tools") };
        let parameters = json!({"type": "object", "examples": [{"a": 1}]});
        let function = json!({"name": "add", "description": "Adds.", "parameters": parameters});
        assert_eq!(add.json.to_string(), json!({"type": "function", "function": function}).to_string());
        assert!(add.is_strict && add.is_deferred && !sub.is_strict && !sub.is_deferred);
        assert_eq!(tools.shown().map(|shown| shown.len()), Some(1));
    }

    #[test]
    fn tools_of_other_servers_are_named_and_not_offered() {
        let hosted = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
        let inner = json!({"name": "in", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]});
        let offered = read_json(&json!({"tools": [hosted, tool("add"), inner]})).expect("valid");
        assert_eq!(offered.ignored, ["tools.0", "tools.2"]);
        assert_eq!(offered.request.tools.list().len(), 1);
        let alone = read_json(&json!({"tools": [hosted], "tool_choice": {"type": "auto"}})).expect("valid");
        assert!(!alone.request.is_used());
    }

    #[test]
    fn choices_are_read() {
        for (choice, expected, is_single) in [
            (json!({"type": "auto"}), ToolChoice::Auto, false),
            (json!({"type": "auto", "disable_parallel_tool_use": true}), ToolChoice::Auto, true),
            (json!({"type": "any", "disable_parallel_tool_use": true}), ToolChoice::Required, true),
            (json!({"type": "tool", "name": "add"}), ToolChoice::Named("add".into()), false),
            (json!({"type": "none"}), ToolChoice::None, false),
        ] {
            let request = json!({"tools": [tool("add")], "tool_choice": choice});
            let read = read_json(&request).expect("valid").request;
            assert_eq!((read.choice, read.is_single), (expected, is_single), "{choice}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (request, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [tool("a"), tool("a")]}), "tools"),
            (json!({"tools": ["a"]}), "tools.0"),
            (json!({"tools": [{"input_schema": {}}]}), "tools.0.name"),
            (json!({"tools": [tool("a b")]}), "tools.0.name"),
            (json!({"tools": [{"name": "a"}]}), "tools.0.input_schema"),
            (json!({"tools": [{"name": "a", "input_schema": []}]}), "tools.0.input_schema"),
            (json!({"tools": [{"name": "a", "input_schema": {}, "mood": 1}]}), "tools.0.mood"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (json!({"tools": [tool("a")], "tool_choice": {"type": "tool", "name": "b"}}), "tool_choice.name"),
            (json!({"tools": [tool("a")], "tool_choice": {"type": "tool"}}), "tool_choice.name"),
            (json!({"tools": [tool("a")], "tool_choice": {"type": "required"}}), "tool_choice.type"),
            (json!({"tools": [tool("a")], "tool_choice": "auto"}), "tool_choice"),
            (json!({"tool_choice": {"type": "auto", "mood": 1}}), "tool_choice.mood"),
        ] {
            assert_eq!(read_json(&request).expect_err(param).param(), Some(param), "{request}");
        }
    }
}
