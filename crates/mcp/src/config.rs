//! Reads `mcpServers` files as Claude Desktop, Cursor and LM Studio write them. Fields of other programs, such as `autoApprove`, are ignored:
//! they would let a file skip the confirmation of calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The maximum size of a file in bytes.
const MAX_FILE_LEN: usize = 1 << 20;

/// A server of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The name of the server in the file.
    pub label: String,
    /// Its command line or URL as the file writes it, for users: variables, which may be secret, are not filled in.
    pub address: String,
    /// The way to reach it.
    pub transport: Transport,
}

/// The way to reach a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process that reads and writes messages as lines.
    Process {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables to set in its environment.
        env: BTreeMap<String, String>,
        /// Its working directory.
        cwd: Option<PathBuf>,
    },
    /// A server at a URL, by streamable HTTP.
    Http {
        /// The URL.
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "mcpServers")]
    servers: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    disabled: bool,
    r#type: Option<String>,
}

/// Reads the servers of a file, without the disabled ones, in the order of the file.
///
/// # Errors
/// Returns the reason with the name of the file, the server and the field.
pub fn read(path: &Path) -> Result<Vec<ServerConfig>, String> {
    let about = |reason: String| format!("{}: {reason}", path.display());
    let bytes = std::fs::read(path).map_err(|error| about(error.to_string()))?;
    if bytes.len() > MAX_FILE_LEN {
        return Err(about(format!("has {} bytes; at most {MAX_FILE_LEN} are allowed", bytes.len())));
    }
    parse(&bytes, &|name| std::env::var(name).ok()).map_err(about)
}

fn parse(bytes: &[u8], variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<ServerConfig>, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| format!("is not valid JSON: {error}"))?;
    let servers = file.servers.ok_or("has no object mcpServers")?;
    let mut read = Vec::new();
    for (label, value) in servers {
        let about = |reason: String| format!("mcpServers.{label}: {reason}");
        let entry: Entry = serde_json::from_value(value).map_err(|error| about(error.to_string()))?;
        if entry.disabled {
            continue;
        }
        let address = entry.address();
        let transport = transport(entry, variable).map_err(about)?;
        read.push(ServerConfig { label, address, transport });
    }
    Ok(read)
}

fn transport(entry: Entry, variable: &dyn Fn(&str) -> Option<String>) -> Result<Transport, String> {
    let fill = |text: String| expanded(&text, variable);
    let fill_all = |map: BTreeMap<String, String>| {
        map.into_iter().map(|(name, value)| Ok((name, fill(value)?))).collect::<Result<_, String>>()
    };
    match (entry.type_name(), entry.command, entry.url) {
        (Some("sse"), _, _) => {
            Err("type is sse, the transport of 2024, which is not supported; give the server's URL for streamable HTTP".into())
        }
        (Some(other), _, _) if !["stdio", "http"].contains(&other) => {
            Err(format!("type is {other:?}; it must be stdio or http"))
        }
        (None | Some("stdio"), Some(command), None) => {
            if command.trim().is_empty() {
                return Err("command is empty".to_owned());
            }
            Ok(Transport::Process {
                command: fill(command)?,
                args: entry.args.into_iter().map(fill).collect::<Result<_, _>>()?,
                env: fill_all(entry.env)?,
                cwd: entry.cwd.map(fill).transpose()?.map(PathBuf::from),
            })
        }
        (None | Some("http"), None, Some(url)) => {
            let filled = fill(url.clone())?;
            if !filled.starts_with("http://") && !filled.starts_with("https://") {
                return Err(format!("url is {url:?}; it must begin with http:// or https://"));
            }
            Ok(Transport::Http { url: filled, headers: fill_all(entry.headers)? })
        }
        (None, Some(_), Some(_)) => Err("has a command and a url; give only one of them".to_owned()),
        (Some("stdio"), _, _) => Err("needs a command, and no url".to_owned()),
        _ => Err("needs a command, or a url of a server".to_owned()),
    }
}

impl Entry {
    fn address(&self) -> String {
        let words = self.command.iter().chain(&self.args).map(String::as_str);
        self.url.clone().unwrap_or_else(|| words.collect::<Vec<_>>().join(" "))
    }

    /// Returns the transport that the entry names, in one spelling.
    fn type_name(&self) -> Option<&'static str> {
        Some(match self.r#type.as_deref()? {
            "stdio" => "stdio",
            "http" | "streamable-http" | "streamableHttp" | "streamable_http" => "http",
            "sse" => "sse",
            _ => "unknown",
        })
    }
}

/// Replaces `${env:NAME}` and `${userHome}`, which Cursor and LM Studio support.
fn expanded(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut result, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, end)) = after.split_once('}') else { break };
        let value = match name.strip_prefix("env:") {
            Some(name) => {
                variable(name).ok_or_else(|| format!("uses the variable {name}, which is not set"))?
            }
            None if name == "userHome" => variable("HOME").unwrap_or_default(),
            None => format!("${{{name}}}"),
        };
        result.push_str(before);
        result.push_str(&value);
        rest = end;
    }
    Ok(result + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<ServerConfig>, String> {
        parse(text.as_bytes(), &|name| (name != "MISSING").then(|| format!("<{name}>")))
    }

    #[test]
    fn files_of_other_programs_are_read() {
        let text = r#"{"theme": 1, "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "${userHome}/x", "$HOME ${else}"], "env": {"KEY": "${env:TOKEN}"},
                      "cwd": "/tmp", "autoApprove": ["read"]},
            "off": {"command": "x", "disabled": true},
            "web": {"url": "https://a.example/mcp?key=${env:T}", "headers": {"Authorization": "Bearer ${env:T}"}},
            "typed": {"type": "streamable-http", "url": "http://localhost:1/mcp"}
        }}"#;
        let servers = parsed(text).expect("valid");
        let labels: Vec<&str> = servers.iter().map(|server| server.label.as_str()).collect();
        assert_eq!(labels, ["files", "web", "typed"]);
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let files = Transport::Process {
            command: "npx".into(),
            args: vec!["-y".into(), "<HOME>/x".into(), "$HOME ${else}".into()],
            env: map("KEY", "<TOKEN>"),
            cwd: Some("/tmp".into()),
        };
        assert_eq!(servers[0].transport, files);
        let headers = map("Authorization", "Bearer <T>");
        assert_eq!(
            servers[1].transport,
            Transport::Http { url: "https://a.example/mcp?key=<T>".into(), headers }
        );
        assert_eq!(servers[0].address, "npx -y ${userHome}/x $HOME ${else}");
        assert_eq!(servers[1].address, "https://a.example/mcp?key=${env:T}");
    }

    #[test]
    fn mistakes_are_named() {
        let one = |entry: &str| parsed(&format!("{{\"mcpServers\": {{\"a\": {entry}}}}}"));
        for (entry, word) in [
            ("{}", "needs a command"),
            (r#"{"command": ""}"#, "command is empty"),
            (r#"{"command": 1}"#, "expected a string"),
            (r#"{"command": "x", "url": "http://a"}"#, "only one"),
            (r#"{"url": "ftp://a/${env:KEY}"}"#, "\"ftp://a/${env:KEY}\"; it must begin with http://"),
            (r#"{"url": "http://a", "type": "sse"}"#, "sse"),
            (r#"{"url": "http://a", "type": "ws"}"#, "stdio or http"),
            (r#"{"type": "stdio", "url": "http://a"}"#, "needs a command"),
            (r#"{"command": "x", "env": {"A": "${env:MISSING}"}}"#, "MISSING"),
        ] {
            let reason = one(entry).expect_err(entry);
            assert!(reason.contains("mcpServers.a") && reason.contains(word), "{reason}");
        }
        assert!(parsed("{}").expect_err("no servers").contains("mcpServers"));
        assert!(parsed("{").expect_err("not JSON").contains("JSON"));
    }
}
