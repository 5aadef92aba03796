//! The settings of MCP servers.

use std::path::PathBuf;

use mlx_mcp::{Limits, ServerConfig};
use mlx_options::Seconds;
use serde::{Deserialize, Serialize};

/// See [`crate::args::ToolArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ToolConfig {
    /// The `mcpServers` file.
    pub mcp: Option<PathBuf>,
    /// The time for a server to start, and for each call.
    pub mcp_timeout: Seconds,
}

impl Default for ToolConfig {
    fn default() -> Self {
        Self { mcp: None, mcp_timeout: Seconds(60.0) }
    }
}

impl ToolConfig {
    /// Reads the servers of the file.
    pub(crate) fn servers(&self) -> Result<Vec<ServerConfig>, String> {
        self.mcp.as_deref().map(mlx_mcp::read).transpose().map(Option::unwrap_or_default)
    }

    /// Returns the time limits.
    pub(crate) fn time_limits(&self) -> Limits {
        let limit = self.mcp_timeout.duration();
        Limits { start: limit, call: limit }
    }

    /// Rejects tools that any program or web page on this machine could run. An error is the flag and the reason.
    pub(super) fn check(&self, has_keys: bool) -> Result<(), (&'static str, String)> {
        if self.mcp_timeout.0 <= 0.0 {
            return Err(("--mcp-timeout", "is 0; give a number of seconds".to_owned()));
        }
        if self.mcp.is_some() && !has_keys {
            let reason = "lets clients run programs with your permissions; give --api-key, --api-key-file or --keys too, so \
                          that only clients with a key can";
            return Err(("--mcp", reason.to_owned()));
        }
        Ok(())
    }
}
