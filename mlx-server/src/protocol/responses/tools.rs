//! The tools of a request: functions, functions in namespaces, and custom tools with text input. Chat templates support only functions. So the
//! other tools become functions for the model, and their calls are converted back.

use std::collections::HashMap;

use chat_format::{Tool, ToolChoice, Tools};
use mlx_json::{Map, Value};
use serde_json::json;

use super::custom_tool::{CustomFormat, INPUT, custom_format};
use super::mcp_tool::{McpChoice, McpSpec};
use crate::chat_request::ToolRequest;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::protocol::content::PathNotation;
use crate::protocol::tools::{
    Function, MAX_TOOLS, ToolChoiceFormat, expect_tools, list, qualified, take_name,
};

/// The tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RequestTools {
    /// The tools in the form that the model sees.
    pub(crate) request: ToolRequest,
    /// The client's form of each tool, by the name that the model sees.
    client_tools: HashMap<String, ClientTool>,
    /// The MCP servers to use.
    pub(crate) mcp: Vec<McpSpec>,
    /// The maximum number of calls of their tools.
    pub(crate) max_calls: Option<usize>,
    /// The MCP server, and perhaps its tool, that must be called.
    mcp_choice: Option<McpChoice>,
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
    /// The kind of the tool.
    pub(crate) kind: ToolKind,
}

/// The kind of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolKind {
    /// A function of the client.
    Function,
    /// A custom tool of the client, with text input.
    Custom,
    /// A tool of the MCP server with this label. The server runs it, after an approval if it needs one.
    Mcp { label: String, needs_approval: bool },
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
        let Reader { tools, client_tools, mcp, ignored } = reader;
        let mut request_tools = Self {
            request: ToolRequest {
                tools: Tools::new(tools)?,
                is_single: is_parallel == Some(false),
                ..ToolRequest::default()
            },
            client_tools,
            mcp,
            max_calls: None,
            mcp_choice: None,
            ignored,
        };
        let Some(choice) = choice else { return Ok(request_tools) };
        request_tools.mcp_choice = McpChoice::read(&choice, &request_tools.mcp)?;
        if request_tools.mcp_choice.is_some() {
            return Ok(request_tools);
        }
        request_tools.request.choice = if !request_tools.mcp.is_empty() && choice == "required" {
            // There may be only tools of MCP servers.
            ToolChoice::Required
        } else {
            ToolChoiceFormat::Responses.read(choice, &request_tools.request.tools)?
        };
        Ok(request_tools)
    }

    /// Takes `max_tool_calls`, which counts only calls that this server runs.
    pub(crate) fn take_max_calls(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        if self.mcp.is_empty() {
            fields.take_unused("max_tool_calls", &[]);
        } else {
            self.max_calls = fields.take("max_tool_calls")?;
        }
        Ok(())
    }

    /// Returns true if the request has this tool of an MCP server.
    pub(crate) fn offers(&self, label: &str, tool: &str) -> bool {
        !self.mcp_names(label, Some(tool)).is_empty()
    }

    /// Adds the tools of MCP servers, each with its label and true if it needs an approval. They get unique names.
    pub(crate) fn add_mcp(&mut self, offers: &[(&str, mlx_mcp::Tool, bool)]) -> Result<(), ApiError> {
        let taken: Vec<String> = self.client_tools.keys().cloned().collect();
        let pairs: Vec<(&str, &str)> =
            offers.iter().map(|(label, tool, _)| (*label, tool.name.as_str())).collect();
        let mut tools = self.request.tools.list().to_vec();
        for (name, (label, tool, needs_approval)) in mlx_mcp::offered(&pairs, &taken).into_iter().zip(offers)
        {
            if tools.len() == MAX_TOOLS {
                return Err(ApiError::field("tools", format!("has more than {MAX_TOOLS} tools")));
            }
            let function = Function {
                name: name.clone(),
                description: Some(tool.description.clone()),
                parameters: Value::from(tool.schema.clone()).into_object().unwrap_or_default(),
                is_strict: false,
                is_deferred: false,
            };
            tools.push(function.tool("tools")?);
            let kind = ToolKind::Mcp { label: (*label).to_owned(), needs_approval: *needs_approval };
            self.client_tools.insert(name, ClientTool { name: tool.name.clone(), namespace: None, kind });
        }
        self.request.tools = Tools::new(tools)?;
        if let Some(choice) = &self.mcp_choice {
            self.request.choice = choice.resolve(|label, tool| self.mcp_names(label, tool))?;
        } else if self.request.choice == ToolChoice::Required {
            expect_tools(&self.request.tools)?;
        }
        Ok(())
    }

    /// Returns the names, for the model, of the tools of an MCP server, or of one of them.
    fn mcp_names(&self, label: &str, tool: Option<&str>) -> Vec<String> {
        let is_it = |it: &ClientTool| {
            matches!(&it.kind, ToolKind::Mcp { label: other, .. } if other == label)
                && tool.is_none_or(|tool| tool == it.name)
        };
        let all = self.request.tools.list().iter().map(|tool| &tool.name);
        all.filter(|name| self.client_tools.get(*name).is_some_and(is_it)).cloned().collect()
    }

    /// Returns the name, for the model, of a tool of an MCP server. It may have been offered only by an earlier request.
    pub(crate) fn mcp_name(&self, label: &str, tool: &str) -> String {
        self.mcp_names(label, Some(tool)).pop().unwrap_or_else(|| qualified(Some(label), tool))
    }

    /// Lets the model write its answer after the results of calls: it need not call a tool again, and may not call any if `ends`.
    pub(crate) fn relax_choice(&mut self, ends: bool) {
        let choice = &mut self.request.choice;
        match choice {
            _ if ends => *choice = ToolChoice::None,
            ToolChoice::Required | ToolChoice::Named(_) => *choice = ToolChoice::Auto,
            ToolChoice::Allowed { is_required, .. } => *is_required = false,
            ToolChoice::Auto | ToolChoice::None => {}
        }
    }

    /// Returns the client's form of the tool that the model calls `name`.
    pub(crate) fn client_tool(&self, name: &str) -> ClientTool {
        let plain = || ClientTool { name: name.to_owned(), namespace: None, kind: ToolKind::Function };
        self.client_tools.get(name).cloned().unwrap_or_else(plain)
    }
}

#[derive(Default)]
struct Reader {
    tools: Vec<Tool>,
    client_tools: HashMap<String, ClientTool>,
    mcp: Vec<McpSpec>,
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
            (Some("mcp"), None) => {
                let spec = McpSpec::read(fields, path, &mut self.ignored)?;
                if self.mcp.iter().any(|other| other.label == spec.label) {
                    let message = format!("is {:?}, which two tools name", spec.label);
                    return Err(ApiError::field(format!("{path}.server_label"), message));
                }
                self.mcp.push(spec);
                Ok(())
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
        self.add(
            function,
            ClientTool { name, namespace: namespace.map(str::to_owned), kind: ToolKind::Function },
        )
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
        self.add(
            function,
            ClientTool { name, namespace: namespace.map(str::to_owned), kind: ToolKind::Custom },
        )
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

#[cfg(test)]
mod tests {
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
        let tide =
            ClientTool { name: "tide".into(), namespace: Some("mcp__sea".into()), kind: ToolKind::Function };
        assert_eq!(request_tools.client_tool("mcp__sea__tide"), tide);
        assert_eq!(request_tools.client_tool("patch").kind, ToolKind::Custom);
        assert_eq!(request_tools.ignored, ["tools[2].format", "tools[3]"]);
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
            (json!([function("a")]), json!({"type": "mcp"}), "tool_choice.server_label"),
            (json!([]), json!("required"), "tool_choice"),
        ] {
            assert_eq!(read(tools, choice).expect_err(param).param(), Some(param));
        }
    }
}
