//! The tools of a request: functions, functions in namespaces, and custom tools with text input. Chat templates support only functions. So the
//! other tools become functions for the model, and their calls are converted back.

use std::collections::HashMap;

use chat_format::{Tool, Tools};
use mlx_json::{Map, Value};
use serde_json::json;

use super::item::Arguments;
use crate::chat_request::ToolRequest;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::protocol::content::PathNotation;
use crate::protocol::tools::{Function, MAX_TOOLS, ToolChoiceFormat, list, qualified, take_name};

/// The argument with the input of a custom tool.
const INPUT: &str = "input";

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RequestTools {
    /// The tools in the form that the model sees.
    pub(crate) request: ToolRequest,
    /// The client's form of each tool, by the name that the model sees.
    client_tools: HashMap<String, ClientTool>,
    /// The full names of unused fields.
    pub(crate) ignored: Vec<String>,
}

/// The client's form of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientTool {
    /// The client's name of the tool.
    pub(crate) name: String,
    /// The namespace of the tool.
    pub(crate) namespace: Option<String>,
    /// True for a custom tool with text input.
    pub(crate) is_custom: bool,
}

impl RequestTools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(
        tools: Option<Value>,
        choice: Option<Value>,
        is_parallel: Option<bool>,
    ) -> Result<Self, ApiError> {
        let mut reader = Reader::default();
        for (path, tool) in list(tools, PathNotation::Brackets)? {
            reader.tool(tool, &path, None)?;
        }
        let Reader { tools, client_tools, ignored } = reader;
        let mut request_tools = Self {
            request: ToolRequest {
                tools: Tools::new(tools)?,
                is_single: is_parallel == Some(false),
                ..ToolRequest::default()
            },
            client_tools,
            ignored,
        };
        if let Some(choice) = choice {
            request_tools.request.choice =
                ToolChoiceFormat::Responses.read(choice, &request_tools.request.tools)?;
        }
        Ok(request_tools)
    }

    /// Returns the client's form of the tool that the model calls `name`.
    pub(crate) fn client_tool(&self, name: &str) -> ClientTool {
        let plain = || ClientTool { name: name.to_owned(), namespace: None, is_custom: false };
        self.client_tools.get(name).cloned().unwrap_or_else(plain)
    }
}

/// Returns the arguments of an earlier call in the form that the model generated.
pub(crate) fn model_arguments(arguments: &Arguments) -> String {
    match arguments {
        Arguments::Json(text) => text.clone(),
        Arguments::Text(text) => json!({ INPUT: text }).to_string(),
    }
}

/// Returns the input of a custom tool from generated arguments. Truncated arguments are returned unchanged.
pub(crate) fn custom_input(arguments: &str) -> String {
    let object = mlx_json::parse(arguments.as_bytes()).ok().and_then(Value::into_object);
    match object.and_then(|mut object| object.shift_remove(INPUT)) {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => arguments.to_owned(),
    }
}

#[derive(Default)]
struct Reader {
    tools: Vec<Tool>,
    client_tools: HashMap<String, ClientTool>,
    ignored: Vec<String>,
}

impl Reader {
    fn tool(&mut self, tool: Value, path: &str, namespace: Option<&str>) -> Result<(), ApiError> {
        let mut fields = Fields::nested(path, tool)?;
        let kind: Option<String> = fields.take("type")?;
        match (kind.as_deref(), namespace) {
            (Some("function"), _) => self.function(fields, namespace),
            (Some("custom"), _) => self.custom(fields, namespace),
            (Some("namespace"), None) => self.namespace(fields),
            (Some("namespace"), Some(_)) => {
                Err(ApiError::unsupported(fields.name("type"), "is namespace; namespaces cannot be nested"))
            }
            // A tool of OpenAI's servers, which is not shown to the model.
            (Some(_), _) => {
                self.ignored.push(path.to_owned());
                Ok(())
            }
            (None, _) => Err(ApiError::field(fields.name("type"), "is missing")),
        }
    }

    fn namespace(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let name = take_name(&mut fields)?;
        fields.take::<String>("description")?;
        let path = fields.name("tools");
        let list: Vec<Value> = fields.take("tools")?.unwrap_or_default();
        fields.end()?;
        for (index, tool) in list.into_iter().enumerate() {
            self.tool(tool, &format!("{path}[{index}]"), Some(&name))?;
        }
        Ok(())
    }

    fn function(&mut self, mut fields: Fields, namespace: Option<&str>) -> Result<(), ApiError> {
        let name = take_name(&mut fields)?;
        let description: Option<String> = fields.take("description")?;
        let parameters: Option<Map<String, Value>> = fields.take("parameters")?;
        let is_strict: Option<bool> = fields.take("strict")?;
        let is_deferred: Option<bool> = fields.take("defer_loading")?;
        // OpenAI does not show the output schema to models either.
        fields.value("output_schema");
        let path = fields.name("defer_loading");
        fields.end()?;
        if is_deferred == Some(true) {
            self.ignored.push(path);
        }
        let any = || {
            Map::from_iter([
                ("type".to_owned(), "object".into()),
                ("properties".to_owned(), json!({}).into()),
            ])
        };
        let function = Function {
            name: qualified(namespace, &name),
            description,
            parameters: parameters.unwrap_or_else(any),
            is_strict: is_strict == Some(true),
            is_deferred: false,
        };
        self.add(function, ClientTool { name, namespace: namespace.map(str::to_owned), is_custom: false })
    }

    /// Adds a custom tool as a function with one argument.
    fn custom(&mut self, mut fields: Fields, namespace: Option<&str>) -> Result<(), ApiError> {
        let name = take_name(&mut fields)?;
        let mut description: String = fields.take("description")?.unwrap_or_default();
        let path = fields.name("format");
        let mut input = json!({"type": "string"});
        let mut is_strict = false;
        if let Some(format) = fields.value("format") {
            match custom_format(format, &path)? {
                CustomFormat::Text => {}
                CustomFormat::Regex(pattern) => {
                    input["pattern"] = format!("^(?:{pattern})$").into();
                    is_strict = true;
                }
                CustomFormat::Lark(grammar) => {
                    // A Lark grammar cannot be enforced inside a JSON string, so the model reads it as text.
                    description.push_str("\n\nThe input follows this grammar:\n");
                    description.push_str(&grammar);
                    self.ignored.push(path);
                }
            }
        }
        fields.end()?;
        let parameters = json!({"type": "object", "properties": {INPUT: input}, "required": [INPUT], "additionalProperties": false});
        let parameters = Value::from(parameters).into_object().unwrap_or_default();
        let model_name = qualified(namespace, &name);
        let function = Function {
            name: model_name,
            description: Some(description),
            parameters,
            is_strict,
            is_deferred: false,
        };
        self.add(function, ClientTool { name, namespace: namespace.map(str::to_owned), is_custom: true })
    }

    fn add(&mut self, function: Function, client_tool: ClientTool) -> Result<(), ApiError> {
        if self.tools.len() == MAX_TOOLS {
            return Err(ApiError::field("tools", format!("has more than {MAX_TOOLS} tools")));
        }
        let tool = function.tool("tools")?;
        self.client_tools.insert(tool.name.clone(), client_tool);
        self.tools.push(tool);
        Ok(())
    }
}

enum CustomFormat {
    Text,
    Regex(String),
    Lark(String),
}

fn custom_format(format: Value, path: &str) -> Result<CustomFormat, ApiError> {
    let mut fields = Fields::nested(path, format)?;
    let kind: Option<String> = fields.take("type")?;
    let format = match kind.as_deref() {
        Some("text") => CustomFormat::Text,
        Some("grammar") => {
            let syntax: Option<String> = fields.take("syntax")?;
            let definition: Option<String> = fields.take("definition")?;
            let definition =
                definition.ok_or_else(|| ApiError::field(fields.name("definition"), "is missing"))?;
            match syntax.as_deref() {
                Some("lark") => CustomFormat::Lark(definition),
                Some("regex") => CustomFormat::Regex(definition),
                _ => return Err(ApiError::field(fields.name("syntax"), "must be lark or regex")),
            }
        }
        _ => return Err(ApiError::field(fields.name("type"), "must be text or grammar")),
    };
    fields.end()?;
    Ok(format)
}

#[cfg(test)]
mod tests {
    use chat_format::ToolChoice;

    use super::*;
    use crate::fields::value as json;

    fn read(tools: Value, choice: Value) -> Result<RequestTools, ApiError> {
        RequestTools::read(Some(tools), Some(choice).filter(|choice| !choice.is_null()), None)
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "name": name, "description": "It.", "parameters": {"type": "object"}, "strict": false})
    }

    #[test]
    fn namespaces_and_custom_tools_become_functions_and_return() {
        let tools = json!([
            function("add"),
            {"type": "namespace", "name": "mcp__sea", "description": "Tides.", "tools": [function("tide")]},
            {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
            {"type": "web_search", "external_web_access": true},
        ]);
        let request_tools = read(tools, Value::Null).expect("valid");
        let names: Vec<&str> =
            request_tools.request.tools.list().iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["add", "mcp__sea__tide", "patch"]);
        let tide = ClientTool { name: "tide".into(), namespace: Some("mcp__sea".into()), is_custom: false };
        assert_eq!(request_tools.client_tool("mcp__sea__tide"), tide);
        assert!(request_tools.client_tool("patch").is_custom);
        assert_eq!(request_tools.ignored, ["tools[2].format", "tools[3]"]);
        let text = "say \"a\"\n";
        assert_eq!(custom_input(&model_arguments(&Arguments::Text(text.into()))), text);
    }

    #[test]
    fn every_form_of_choice_is_read() {
        let named = json!({"type": "function", "name": "add"});
        for (choice, expected) in [
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (named.clone(), ToolChoice::Named("add".into())),
            (
                json!({"type": "allowed_tools", "mode": "required", "tools": [named]}),
                ToolChoice::Allowed { names: vec!["add".into()], is_required: true },
            ),
        ] {
            assert_eq!(
                read(json!([function("add"), function("sub")]), choice).expect("valid").request.choice,
                expected
            );
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (tools, choice, param) in [
            (json!({}), Value::Null, "tools"),
            (json!([{"name": "a"}]), Value::Null, "tools[0].type"),
            (json!([{"type": "function"}]), Value::Null, "tools[0].name"),
            (json!([{"type": "function", "name": "a b"}]), Value::Null, "tools[0].name"),
            (json!([{"type": "function", "name": "a", "mood": 1}]), Value::Null, "tools[0].mood"),
            (
                json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]),
                Value::Null,
                "tools[0].tools[0].name",
            ),
            (
                json!([{"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "bnf", "definition": ""}}]),
                Value::Null,
                "tools[0].format.syntax",
            ),
            (json!([function("a"), function("a")]), Value::Null, "tools"),
            (json!([function("a")]), json!({"type": "function", "name": "b"}), "tool_choice.name"),
            (json!([function("a")]), json!({"type": "mcp"}), "tool_choice.type"),
            (json!([]), json!("required"), "tool_choice"),
        ] {
            assert_eq!(read(tools, choice).expect_err(param).param(), Some(param));
        }
    }
}
