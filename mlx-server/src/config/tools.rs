//! The settings of MCP servers.

use std::path::PathBuf;

use axum::http::Uri;
use mlx_mcp::{Limits, ServerConfig};
use mlx_options::Seconds;
use serde::{Deserialize, Serialize};

use super::network::is_host_with_port;
use crate::image_urls::allows;

/// See [`crate::args::ToolArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ToolConfig {
    /// The `mcpServers` file.
    pub mcp: Option<PathBuf>,
    /// The time for a server to start, and for each call.
    pub mcp_timeout: Seconds,
    /// Hosts of MCP servers that clients may name by URL.
    pub allow_mcp_urls: Vec<String>,
}

impl Default for ToolConfig {
    fn default() -> Self {
        Self { mcp: None, mcp_timeout: Seconds(60.0), allow_mcp_urls: Vec::new() }
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

    /// Returns the URL of an MCP server that a client names, if its host is allowed. The result has only parts that all parsers of URLs read
    /// alike.
    pub(crate) fn allowed_url(&self, url: &str) -> Option<String> {
        let is_plain = |letter: char| letter.is_ascii_graphic() && !"\\@#".contains(letter);
        let uri: Uri = url.parse().ok().filter(|_| url.chars().all(is_plain))?;
        let (scheme, host) = (uri.scheme_str()?, uri.host()?);
        let default = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(default);
        let path = uri.path_and_query()?;
        let is_allowed = self.allow_mcp_urls.iter().any(|entry| allows(entry, host, port));
        is_allowed.then(|| format!("{scheme}://{host}:{port}{path}"))
    }

    /// Rejects tools that any program or web page on this machine could run. An error is the flag and the reason.
    pub(super) fn check(&self, has_keys: bool) -> Result<(), (&'static str, String)> {
        if self.mcp_timeout.0 <= 0.0 {
            return Err(("--mcp-timeout", "is 0; give a number of seconds".to_owned()));
        }
        if let Some(host) = self.allow_mcp_urls.iter().find(|host| !is_host_with_port(host)) {
            let reason = format!(
                "{host:?} is not a host; write one such as tools.example.org or tools.example.org:8443"
            );
            return Err(("--allow-mcp-urls", reason));
        }
        if !self.allow_mcp_urls.is_empty() && !has_keys {
            let reason = "lets clients run tools; give --api-key, --api-key-file or --keys too";
            return Err(("--allow-mcp-urls", reason.to_owned()));
        }
        if self.mcp.is_some() && !has_keys {
            let reason = "lets clients run programs with your permissions; give --api-key, --api-key-file or --keys too, so \
                          that only clients with a key can";
            return Err(("--mcp", reason.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_allowed_hosts_are_used() {
        let hosts = ["a.example", "127.0.0.1:81", "[::1]:82"].map(str::to_owned).to_vec();
        let config = ToolConfig { allow_mcp_urls: hosts, ..ToolConfig::default() };
        for (url, allowed) in [
            ("https://a.example/mcp?x=1", Some("https://a.example:443/mcp?x=1")),
            ("http://127.0.0.1:81/mcp", Some("http://127.0.0.1:81/mcp")),
            ("http://[::1]:82/mcp", Some("http://[::1]:82/mcp")),
            ("http://127.0.0.1:82/mcp", None),
            ("https://b.example/mcp", None),
            ("https://a.example.evil.example/", None),
            ("https://a.example@evil.example/", None),
            ("https://evil.example\\@a.example/", None),
            ("https://evil.example#@a.example/", None),
            ("file://a.example/etc/passwd", None),
            ("a.example", None),
            ("https://a.example/ x", None),
        ] {
            assert_eq!(config.allowed_url(url).as_deref(), allowed, "{url}");
        }
    }
}
