//! The MCP servers of `--mcp`, whose tools clients run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use mlx_mcp::{Output, Server, Toolset};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::config::{StartError, ToolConfig};
use crate::error::ApiError;

/// The maximum number of calls at a time.
const MAX_CALLS: usize = 32;
/// The time between two attempts to start servers that have failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The servers and their tools.
pub(crate) struct McpServers {
    servers: Vec<Arc<Server>>,
    listed: Mutex<Option<Listed>>,
    is_retrying: AtomicBool,
    calls: Semaphore,
}

/// The tools, and the time of their list.
#[derive(Clone)]
struct Listed {
    tools: Arc<Toolset>,
    at: Instant,
}

impl McpServers {
    /// Reads the file of servers. None of them is started yet.
    pub(crate) fn open(config: &ToolConfig) -> Result<Self, StartError> {
        let limits = config.time_limits();
        let servers = config
            .servers()
            .map_err(|reason| StartError::new("--mcp", reason))?
            .into_iter()
            .map(|server| Arc::new(Server::new(server, limits)));
        Ok(Self {
            servers: servers.collect(),
            listed: Mutex::default(),
            is_retrying: AtomicBool::new(false),
            calls: Semaphore::new(MAX_CALLS),
        })
    }

    /// Returns the tools. The first call starts the servers. Later, servers that have failed are started again in the background.
    pub(crate) async fn tools(self: &Arc<Self>) -> Arc<Toolset> {
        let listed = {
            let mut listed = self.listed.lock().await;
            match &*listed {
                Some(listed) => listed.clone(),
                None => listed.insert(self.list().await).clone(),
            }
        };
        let has_failed = listed.tools.servers.iter().any(|(_, tools)| tools.is_err());
        if has_failed
            && listed.at.elapsed() >= RETRY_INTERVAL
            && !self.is_retrying.swap(true, Ordering::Relaxed)
        {
            let servers = Arc::clone(self);
            tokio::spawn(async move {
                let again = servers.list().await;
                *servers.listed.lock().await = Some(again);
                servers.is_retrying.store(false, Ordering::Relaxed);
            });
        }
        listed.tools
    }

    async fn list(&self) -> Listed {
        let tools = Toolset::open(&self.servers, &[]).await;
        for (server, tools) in &tools.servers {
            let server = server.label();
            match tools {
                Ok(tools) => tracing::info!(server, tools, "an MCP server is ready"),
                Err(reason) => tracing::warn!(reason, "an MCP server cannot be used"),
            }
        }
        Listed { tools: Arc::new(tools), at: Instant::now() }
    }

    /// Calls a tool. Dropping the future cancels the call, and so does `stop`.
    pub(crate) async fn call(
        &self,
        server: &Server,
        tool: &str,
        arguments: serde_json::Map<String, serde_json::Value>,
        stop: &CancellationToken,
    ) -> Result<Output, ApiError> {
        let Ok(_permit) = self.calls.try_acquire() else {
            return Err(ApiError::busy(format!("{MAX_CALLS} calls of tools are running; try again"), 1));
        };
        let begin = Instant::now();
        let result = tokio::select! {
            result = server.call(tool, arguments) => result,
            () = stop.cancelled() => return Err(ApiError::shutting_down()),
        };
        let server = server.label();
        let milliseconds = begin.elapsed().as_millis() as u64;
        let is_error = result.as_ref().map_or(true, |output| output.is_error);
        tracing::info!(server, tool, milliseconds, is_error, "tool call");
        result.map_err(|reason| ApiError::new(StatusCode::BAD_GATEWAY, "mcp_failed", reason))
    }
}
