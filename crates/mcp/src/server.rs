//! A server of the file. It starts at its first use and again after it has died. Every request has a time limit.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::clipped::clipped;
use crate::config::ServerConfig;
use crate::connection::Connection;
use crate::output::{self, Output};

/// The maximum length of a description and of a schema, in bytes. A longer one would fill the prompt.
const MAX_DESCRIPTION_LEN: usize = 8 << 10;
const MAX_SCHEMA_LEN: usize = 64 << 10;

/// The maximum length of the reason of a failure, which the server may have written.
const MAX_REASON_LEN: usize = 2 << 10;

/// The time limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time to start and to list its tools. A package runner may download the server first.
    pub start: Duration,
    /// The time of a call.
    pub call: Duration,
}

/// A tool of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name on the server.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
    /// Hints of the server, such as `readOnlyHint`.
    pub annotations: Option<Value>,
}

/// A server of the file.
pub struct Server {
    config: ServerConfig,
    limits: Limits,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Server {
    /// Returns a server that is not started yet.
    pub fn new(config: ServerConfig, limits: Limits) -> Self {
        Self { config, limits, connection: Mutex::default() }
    }

    /// Returns its name in the file.
    pub fn label(&self) -> &str {
        &self.config.label
    }

    /// Returns its command line or URL for users, without the values of variables.
    pub fn address(&self) -> &str {
        &self.config.address
    }

    /// Starts the server if necessary and returns its tools.
    ///
    /// # Errors
    /// Returns the reason with the name of the server.
    pub async fn tools(&self) -> Result<Vec<Tool>, String> {
        let listed = async { self.connection().await?.tools().await };
        let tools = self.within(self.limits.start, "list its tools", listed).await?;
        Ok(tools.into_iter().map(read).collect())
    }

    /// Calls a tool by its name on the server. Dropping the future tells the server that the call was cancelled.
    ///
    /// # Errors
    /// Returns the reason with the name of the server.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Output, String> {
        let connection = self.within(self.limits.start, "start", self.connection()).await?;
        let called = connection.call(tool, arguments);
        self.within(self.limits.call, "answer the call", called).await.map(output::read)
    }

    async fn within<T>(
        &self,
        limit: Duration,
        task: &str,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let about = |reason: String| {
            format!("the MCP server {:?} failed: {}", self.label(), clipped(&reason, MAX_REASON_LEN))
        };
        match timeout(limit, work).await {
            Ok(outcome) => outcome.map_err(about),
            Err(_) => Err(about(format!("it did not {task} within {} seconds", limit.as_secs_f64()))),
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(open));
        }
        // Ends what is left of a dead server before another one starts.
        *connection = None;
        let open = Arc::new(Box::pin(Connection::open(&self.config.transport)).await?);
        *connection = Some(Arc::clone(&open));
        Ok(open)
    }
}

fn read(tool: rmcp::model::Tool) -> Tool {
    let mut description = tool.description.map(Cow::into_owned).unwrap_or_default();
    description.truncate(description.floor_char_boundary(MAX_DESCRIPTION_LEN));
    let mut schema = Value::Object(tool.input_schema.as_ref().clone());
    if schema.to_string().len() > MAX_SCHEMA_LEN {
        schema = serde_json::json!({"type": "object"});
    }
    let annotations = tool.annotations.and_then(|annotations| serde_json::to_value(annotations).ok());
    Tool { name: tool.name.into_owned(), description, schema, annotations }
}
