//! The MCP servers of a chat. They start while the model loads. Their tools run like commands: after a confirmation, until they end or the user
//! stops them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chat_format::{Image, Part};
use mlx_mcp::{Limits, NamedTool, Output, Server, Toolset};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::exit_code::Failure;
use crate::interrupt::Interrupt;

/// Servers that are starting.
pub(in crate::chat) struct StartingServers {
    runtime: Runtime,
    tools: tokio::task::JoinHandle<Toolset>,
}

impl StartingServers {
    /// Reads a file of servers and starts them. No tool gets one of the names `taken`.
    pub(in crate::chat) fn read(file: &Path, limit: Duration, taken: Vec<String>) -> Result<Self, Failure> {
        let servers = mlx_mcp::read(file).map_err(|reason| Failure::usage("--mcp", reason))?;
        let limits = Limits { start: limit, call: limit };
        let servers: Vec<Arc<Server>> =
            servers.into_iter().map(|server| Arc::new(Server::new(server, limits))).collect();
        // One thread receives messages while no call is running.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::usage("--mcp", error.to_string()))?;
        let tools = runtime.spawn(async move { Toolset::open(&servers, &taken).await });
        Ok(Self { runtime, tools })
    }

    /// Waits until each server has started or failed.
    pub(super) fn started(self) -> Servers {
        let set = self.runtime.block_on(self.tools).unwrap_or_default();
        Servers { runtime: Some(self.runtime), set }
    }
}

/// The servers and their tools.
#[derive(Default)]
pub(super) struct Servers {
    runtime: Option<Runtime>,
    set: Toolset,
}

impl Servers {
    pub(super) fn tools(&self) -> &[NamedTool] {
        &self.set.tools
    }

    /// Returns the unique name of the tool that a name of the user approves.
    pub(super) fn approved(&self, name: &str) -> Option<String> {
        self.set.approved(name).map(|tool| tool.name.clone())
    }

    /// Returns one line for each server that has failed.
    pub(super) fn failures(&self) -> impl Iterator<Item = &str> {
        self.set.servers.iter().filter_map(|(_, tools)| tools.as_ref().err()).map(String::as_str)
    }

    /// Lists the servers and their tools.
    pub(super) fn list(&self) -> String {
        if self.set.servers.is_empty() {
            return "there are no MCP servers; start with --mcp FILE".to_owned();
        }
        let mut lines = Vec::new();
        for (server, tools) in &self.set.servers {
            match tools {
                Err(reason) => lines.push(reason.clone()),
                Ok(count) => {
                    let tools = if *count == 1 { "tool" } else { "tools" };
                    lines.push(format!("{}: {count} {tools} ({})", server.label(), server.address()));
                }
            }
            let own = self.tools().iter().filter(|tool| Arc::ptr_eq(&tool.server, server));
            lines.extend(own.map(|tool| format!("  {}", line(tool))));
        }
        lines.join("\n")
    }

    /// Calls a tool. Returns the result for the model, and true if the user stopped the call.
    pub(super) fn call(
        &self,
        tool: &NamedTool,
        arguments: serde_json::Map<String, Value>,
        interrupt: &Interrupt,
    ) -> (Vec<Part>, bool) {
        let Some(runtime) = &self.runtime else { return (Vec::new(), false) };
        let (stop, stopped) = oneshot::channel::<()>();
        interrupt.watch(move || {
            stop.send(()).ok();
        });
        let result = runtime.block_on(async {
            tokio::select! {
                result = tool.server.call(&tool.tool.name, arguments) => Some(result),
                _ = stopped => None,
            }
        });
        interrupt.release();
        match result {
            None => (text("The user stopped the call.".to_owned()), true),
            Some(Ok(output)) => (parts(output), false),
            Some(Err(reason)) => (text(format!("The call failed: {reason}.")), false),
        }
    }
}

/// Describes a tool by its name and the first sentence of its description, which may be a page long.
pub(super) fn line(tool: &NamedTool) -> String {
    let first = tool.tool.description.lines().next().unwrap_or_default();
    let sentence = first.find(". ").map_or(first, |end| &first[..=end]);
    format!("{}: {}", tool.name, mlx_options::visible(sentence))
}

fn text(text: String) -> Vec<Part> {
    vec![Part::Text(text)]
}

fn parts(output: Output) -> Vec<Part> {
    let part = |part| match part {
        mlx_mcp::Part::Text(text) => Part::Text(text),
        mlx_mcp::Part::Picture(bytes) => Part::Image(Image::file(bytes)),
    };
    let mut parts: Vec<Part> = output.parts.into_iter().map(part).collect();
    if output.is_error {
        parts.insert(0, Part::Text("The tool reported an error:".to_owned()));
    }
    parts
}
