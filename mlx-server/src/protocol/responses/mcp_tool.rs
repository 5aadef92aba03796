//! Tools of type `mcp`: the servers that a request uses, with their allowed tools and the calls that need an approval.

use std::collections::BTreeMap;

use chat_format::ToolChoice;
use mlx_json::{Map, Value};
use mlx_mcp::Tool;

use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::Fields;

/// A server that a request uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct McpSpec {
    /// The path of the tool in the request.
    pub(crate) path: String,
    /// The name of the server.
    pub(crate) label: String,
    /// Its address, if it is not in the file of `--mcp`.
    pub(crate) address: Option<Address>,
    allowed: Option<ToolFilter>,
    approval: Approval,
}

/// The address of a server that is not in the file of `--mcp`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Address {
    /// The URL, as the client gave it.
    pub(crate) url: String,
    /// Headers of requests to it.
    pub(crate) headers: BTreeMap<String, String>,
}

/// The calls that need an approval.
#[derive(Debug, Clone, PartialEq)]
enum Approval {
    Always,
    Never,
    /// Calls of tools of the second filter need none, unless the first has them too.
    Lists(Option<ToolFilter>, Option<ToolFilter>),
}

/// Some of the tools of a server.
#[derive(Debug, Clone, PartialEq)]
struct ToolFilter {
    names: Option<Vec<String>>,
    is_read_only: Option<bool>,
}

/// The fields that name servers of OpenAI.
const UNSUPPORTED_FIELDS: [(&str, &str); 2] = [
    ("connector_id", "this server has no connectors; add an MCP server to the file of --mcp"),
    ("tunnel_id", "this server has no tunnels; add an MCP server to the file of --mcp"),
];

impl McpSpec {
    /// Reads a tool of type `mcp`. Names of unused fields are added to `ignored`.
    pub(super) fn read(mut fields: Fields, path: &str, ignored: &mut Vec<String>) -> Result<Self, ApiError> {
        let label: Option<String> = fields.take("server_label")?;
        let label = label.ok_or_else(|| ApiError::field(fields.name("server_label"), "is missing"))?;
        fields.reject(&UNSUPPORTED_FIELDS)?;
        for field in ["server_description", "allowed_callers", "defer_loading"] {
            if fields.value(field).is_some_and(|value| value.as_bool() != Some(false)) {
                ignored.push(fields.name(field));
            }
        }
        let allowed = fields.value("allowed_tools").map(|value| match value {
            list @ Value::Array(_) => {
                let named = Value::object([("tool_names", list)]);
                ToolFilter::read(named, &fields.name("allowed_tools"))
            }
            other => ToolFilter::read(other, &fields.name("allowed_tools")),
        });
        let address = address(&mut fields)?;
        let approval = fields.value("require_approval");
        let approval = Approval::read(approval, &fields.name("require_approval"))?;
        let allowed = allowed.transpose()?;
        fields.end()?;
        Ok(Self { path: path.to_owned(), label, address, allowed, approval })
    }

    /// Returns true if the request may use a tool.
    pub(crate) fn allows(&self, tool: &Tool) -> bool {
        self.allowed.as_ref().is_none_or(|filter| filter.has(tool))
    }

    /// Rejects the name of an allowed tool that the server does not have.
    pub(crate) fn check_names(&self, tools: &[&Tool]) -> Result<(), ApiError> {
        let names = self.allowed.iter().flat_map(|filter| &filter.names).flatten();
        let is_unknown = |name: &&String| tools.iter().all(|tool| tool.name != **name);
        match names.into_iter().find(is_unknown) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
                let message = format!(
                    "has {name:?}, which is not a tool of {:?}; there are: {}",
                    self.label,
                    known.join(", ")
                );
                Err(ApiError::field(format!("{}.allowed_tools", self.path), message))
            }
        }
    }

    /// Returns true if a call of the tool needs an approval.
    pub(crate) fn needs_approval(&self, tool: &Tool) -> bool {
        let has = |filter: &Option<ToolFilter>| filter.as_ref().is_some_and(|filter| filter.has(tool));
        match &self.approval {
            Approval::Always => true,
            Approval::Never => false,
            Approval::Lists(always, never) => has(always) || !has(never),
        }
    }
}

/// Takes the URL of a server, with the headers of requests to it.
fn address(fields: &mut Fields) -> Result<Option<Address>, ApiError> {
    let url: Option<String> = fields.take("server_url")?;
    let Some(url) = url else {
        let reason = "belongs to server_url; headers of a server of --mcp are set in its file";
        return fields.reject(&[("authorization", reason), ("headers", reason)]).map(|()| None);
    };
    let path = fields.name("headers");
    let given: Map<String, Value> = fields.take("headers")?.unwrap_or_default();
    let mut headers = BTreeMap::new();
    for (name, value) in given {
        let text =
            value.as_str().ok_or_else(|| ApiError::field(format!("{path}.{name}"), "must be a string"))?;
        headers.insert(name, text.to_owned());
    }
    if let Some(token) = fields.take::<String>("authorization")? {
        headers.insert("Authorization".to_owned(), format!("Bearer {token}"));
    }
    Ok(Some(Address { url, headers }))
}

impl Approval {
    fn read(given: Option<Value>, path: &str) -> Result<Self, ApiError> {
        match given {
            None => Ok(Self::Always),
            Some(Value::String(text)) if text == "always" => Ok(Self::Always),
            Some(Value::String(text)) if text == "never" => Ok(Self::Never),
            Some(lists @ Value::Object(_)) => {
                let mut fields = Fields::nested(path, lists)?;
                let mut filter = |name: &str| {
                    let path = fields.name(name);
                    fields.value(name).map(|value| ToolFilter::read(value, &path)).transpose()
                };
                let approval = Self::Lists(filter("always")?, filter("never")?);
                fields.end()?;
                Ok(approval)
            }
            Some(_) => {
                Err(ApiError::field(path, "must be always, never, or an object with always and never"))
            }
        }
    }
}

impl ToolFilter {
    fn read(value: Value, path: &str) -> Result<Self, ApiError> {
        let mut fields = Fields::nested(path, value)?;
        let filter = Self { names: fields.take("tool_names")?, is_read_only: fields.take("read_only")? };
        fields.end()?;
        Ok(filter)
    }

    fn has(&self, tool: &Tool) -> bool {
        let hint = tool.annotations.as_ref().map(|hints| &hints["readOnlyHint"]);
        let is_read_only = hint.and_then(serde_json::Value::as_bool).unwrap_or(false);
        self.names.as_ref().is_none_or(|names| names.contains(&tool.name))
            && self.is_read_only.is_none_or(|wanted| wanted == is_read_only)
    }
}

/// A `tool_choice` of type `mcp`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct McpChoice {
    label: String,
    tool: Option<String>,
}

impl McpChoice {
    /// Reads a choice, if it is of type `mcp`.
    pub(super) fn read(choice: &Value, specs: &[McpSpec]) -> Result<Option<Self>, ApiError> {
        if choice["type"] != "mcp" {
            return Ok(None);
        }
        let mut fields = Fields::nested("tool_choice", choice.clone())?;
        fields.value("type");
        let label: Option<String> = fields.take("server_label")?;
        let label = label.ok_or_else(|| ApiError::field("tool_choice.server_label", "is missing"))?;
        let tool = fields.take("name")?;
        fields.end()?;
        if !specs.iter().any(|spec| spec.label == label) {
            let message = format!("is {label:?}, which is not among the tools");
            return Err(ApiError::field("tool_choice.server_label", message));
        }
        Ok(Some(Self { label, tool }))
    }

    /// Returns the choice among the tools for the model. `names` returns those of a server, or of one of its tools.
    pub(super) fn resolve(
        &self,
        names: impl Fn(&str, Option<&str>) -> Vec<String>,
    ) -> Result<ToolChoice, ApiError> {
        let mut names = names(&self.label, self.tool.as_deref());
        match (&self.tool, names.pop()) {
            (Some(_), Some(name)) => Ok(ToolChoice::Named(name)),
            (None, Some(name)) => {
                names.push(name);
                Ok(ToolChoice::Allowed { names, is_required: true })
            }
            (tool, None) => {
                let message = format!(
                    "has no such tool: the MCP server {:?} offers no {}",
                    self.label,
                    tool.as_deref().unwrap_or("tools")
                );
                Err(ApiError::field("tool_choice", message))
            }
        }
    }
}

/// Returns a JSON object as text, such as the error of a call.
pub(super) fn object_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(object) => message_of(object),
        other => format!("[{}]", kind(other)),
    }
}

/// Returns the message or the texts of an error.
fn message_of(object: &Map) -> String {
    if let Some(Value::String(message)) = object.get("message") {
        return message.clone();
    }
    let parts = object.get("content").and_then(Value::as_array).into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn read(more: Value) -> Result<McpSpec, ApiError> {
        let mut tool = json!({"server_label": "sea"});
        for (name, value) in more.into_object().expect("an object") {
            tool.insert(&name, value);
        }
        McpSpec::read(Fields::nested("tools[0]", tool)?, "tools[0]", &mut Vec::new())
    }

    fn tool(name: &str, is_read_only: bool) -> Tool {
        let annotations = Some(serde_json::json!({"readOnlyHint": is_read_only}));
        Tool { name: name.into(), description: String::new(), schema: serde_json::json!({}), annotations }
    }

    #[test]
    fn filters_and_approvals_are_read() {
        let (look, write) = (tool("look", true), tool("write", false));
        let of = |more: Value| {
            let spec = read(more).expect("valid");
            [&look, &write].map(|tool| (spec.allows(tool), spec.needs_approval(tool)))
        };
        assert_eq!(of(json!({})), [(true, true), (true, true)]);
        assert_eq!(of(json!({"require_approval": "never"})), [(true, false), (true, false)]);
        assert_eq!(of(json!({"allowed_tools": ["look"]})), [(true, true), (false, true)]);
        assert_eq!(of(json!({"allowed_tools": {"read_only": false}})), [(false, true), (true, true)]);
        let never = json!({"require_approval": {"never": {"read_only": true}}});
        assert_eq!(of(never), [(true, false), (true, true)]);
        let both = json!({"require_approval": {"always": {"tool_names": ["look"]}, "never": {}}});
        assert_eq!(of(both), [(true, true), (true, false)]);
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (more, param) in [
            (json!({"server_label": null}), "tools[0].server_label"),
            (json!({"server_url": 1}), "tools[0].server_url"),
            (json!({"authorization": "t"}), "tools[0].authorization"),
            (json!({"server_url": "https://a.example", "headers": {"A": 1}}), "tools[0].headers.A"),
            (json!({"headers": {}}), "tools[0].headers"),
            (json!({"connector_id": "connector_gmail"}), "tools[0].connector_id"),
            (json!({"require_approval": "sometimes"}), "tools[0].require_approval"),
            (json!({"require_approval": {"often": {}}}), "tools[0].require_approval.often"),
            (json!({"allowed_tools": {"names": []}}), "tools[0].allowed_tools.names"),
            (json!({"allowed_tools": [1]}), "tools[0].allowed_tools.tool_names"),
            (json!({"mood": 1}), "tools[0].mood"),
        ] {
            assert_eq!(read(more).expect_err(param).param(), Some(param));
        }
    }
}
