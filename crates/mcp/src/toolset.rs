//! The tools of several servers under unique names.

use std::sync::Arc;

use serde_json::Value;

use crate::names::{offered, prefix, qualified};
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
        set.name(taken);
        set
    }

    /// Gives each tool its unique name.
    fn name(&mut self, taken: &[String]) {
        let pairs: Vec<(&str, &str)> =
            self.tools.iter().map(|named| (named.server.label(), named.tool.name.as_str())).collect();
        let names = offered(&pairs, taken);
        for (tool, name) in self.tools.iter_mut().zip(names) {
            tool.name = name;
        }
    }

    /// Returns the tool that a name of the user approves. A name with a configured server as its prefix, such as `files__read`, approves only a
    /// tool of this server. Any other name depends on the tools of all servers, so it approves nothing if one of them failed.
    pub fn approved(&self, name: &str) -> Option<&NamedTool> {
        let servers = || self.servers.iter().map(|(server, _)| server);
        let owners: Vec<_> = servers().filter(|server| name.starts_with(&prefix(server.label()))).collect();
        let has_failed = self.servers.iter().any(|(_, tools)| tools.is_err());
        self.tools.iter().find(|tool| match owners[..] {
            [owner] => {
                Arc::ptr_eq(&tool.server, owner)
                    && (tool.name == name || qualified(owner.label(), &tool.tool.name) == name)
            }
            _ => !has_failed && tool.name == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::config::{ServerConfig, Transport};
    use crate::server::Limits;

    /// Returns servers and their tools; a server without tools has failed.
    fn set(servers: &[(&str, &[&str])]) -> Toolset {
        let limits = Limits { start: Duration::ZERO, call: Duration::ZERO };
        let mut set = Toolset::default();
        for (label, tools) in servers {
            let transport = Transport::Http { url: String::new(), headers: BTreeMap::new() };
            let config = ServerConfig { label: (*label).into(), address: String::new(), transport };
            let server = Arc::new(Server::new(config, limits));
            let count = if tools.is_empty() { Err("it failed".to_owned()) } else { Ok(tools.len()) };
            set.servers.push((Arc::clone(&server), count));
            set.tools.extend(tools.iter().map(|name| NamedTool {
                name: String::new(),
                server: Arc::clone(&server),
                tool: Tool {
                    name: (*name).into(),
                    description: String::new(),
                    schema: Value::Null,
                    annotations: None,
                },
            }));
        }
        set.name(&[]);
        set
    }

    #[test]
    fn a_name_never_approves_the_tool_of_another_server() {
        let approved = |set: &Toolset, name: &str| {
            set.approved(name).map(|tool| format!("{} of {}", tool.tool.name, tool.server.label()))
        };
        let of = |text: &str| Some(text.to_owned());
        let both = set(&[("files", &["read", "list"]), ("web", &["read", "get", "files__list"])]);
        assert_eq!(approved(&both, "list"), of("list of files"));
        assert_eq!(approved(&both, "web__get"), of("get of web"));
        assert_eq!(approved(&both, "web__read"), of("read of web"));
        assert_eq!(approved(&both, "files__list"), of("list of files"));
        assert_eq!(approved(&both, "read"), None);
        let half = set(&[("files", &[]), ("web", &["read", "get", "files__read"])]);
        for name in ["read", "get", "files__read", "files__get"] {
            assert_eq!(approved(&half, name), None, "{name}");
        }
        assert_eq!(approved(&half, "web__read"), of("read of web"));
    }
}
