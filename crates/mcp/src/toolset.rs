//! The tools of several servers under unique names.

use std::sync::Arc;

use serde_json::Value;

use crate::names::offered;
use crate::server::{Server, Tool};

/// A tool under the name that models use.
#[derive(Clone)]
pub struct NamedTool {
    /// The unique name.
    pub name: String,
    /// Its server.
    pub server: Arc<Server>,
    /// The tool.
    pub tool: Tool,
}

impl NamedTool {
    /// Returns the tool in the format of OpenAI's API.
    pub fn definition(&self) -> Value {
        let function = serde_json::json!({
            "name": self.name, "description": self.tool.description, "parameters": self.tool.schema,
        });
        serde_json::json!({"type": "function", "function": function})
    }
}

/// The tools of several servers.
#[derive(Default)]
pub struct Toolset {
    /// The tools, in the order of their servers.
    pub tools: Vec<NamedTool>,
    /// For each server, its number of tools or the reason that it has none.
    pub servers: Vec<(Arc<Server>, Result<usize, String>)>,
}

impl Toolset {
    /// Starts the servers together and lists their tools. No tool gets one of the names `taken`.
    pub async fn open(servers: &[Arc<Server>], taken: &[String]) -> Self {
        let lists: Vec<_> = servers
            .iter()
            .map(|server| {
                let server = Arc::clone(server);
                tokio::spawn(async move { server.tools().await })
            })
            .collect();
        let mut set = Self::default();
        for (server, list) in servers.iter().zip(lists) {
            let tools = list.await.unwrap_or_else(|error| Err(error.to_string()));
            set.servers.push((Arc::clone(server), tools.as_ref().map(Vec::len).map_err(Clone::clone)));
            set.tools.extend(tools.into_iter().flatten().map(|tool| NamedTool {
                name: String::new(),
                server: Arc::clone(server),
                tool,
            }));
        }
        let pairs: Vec<(&str, &str)> =
            set.tools.iter().map(|named| (named.server.label(), named.tool.name.as_str())).collect();
        let names = offered(&pairs, taken);
        for (tool, name) in set.tools.iter_mut().zip(names) {
            tool.name = name;
        }
        set
    }

    /// Returns the tool with this unique name.
    pub fn get(&self, name: &str) -> Option<&NamedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}
