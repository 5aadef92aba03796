//! `mlx launch`: connects a coding agent to the server, by printing the commands or running the agent.

mod clients;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use ureq::Agent;

use crate::exit_code::Failure;
use crate::shell_word::quoted;
use crate::terminal;
use clients::{CLIENTS, Client, Server};

/// The time limit for listing the server's models.
const START_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx serve -m mlx-community/Qwen3-8B-4bit    # in another terminal
  mlx launch claude                           # print the commands for Claude Code
  mlx launch codex --exec                     # run Codex
  mlx launch claude --exec -- -p 'Tidy up'    # with arguments for Claude Code";

#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The client: claude, codex, opencode, qwen or aider
    #[arg(value_name = "CLIENT", value_parser = CLIENTS.map(|client| client.name))]
    client: String,

    /// Name of the model on the server [default: its first]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,

    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://localhost:8080")]
    url: String,

    /// API key of the server, if it needs one
    #[arg(long, value_name = "KEY", env = "MLX_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Run the client instead of printing the commands
    #[arg(long)]
    exec: bool,

    /// Arguments for the client
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &LaunchArgs) -> Result<(), Failure> {
    let client = CLIENTS.iter().find(|client| client.name == args.client);
    let client = client.ok_or_else(|| Failure::usage("CLIENT", "is not known"))?;
    let server = find_server(args)?;
    let arguments = [(client.arguments)(&server), args.arguments.clone()].concat();
    if args.exec {
        execute(client, &server, &arguments)
    } else {
        terminal::show(&script(client, &server, &arguments))
    }
}

/// Requests the list of models from the server.
fn find_server(args: &LaunchArgs) -> Result<Server, Failure> {
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(START_TIMEOUT))
        .http_status_as_error(false)
        .build()
        .into();
    let mut request = agent.get(format!("{url}/v1/models"));
    if let Some(key) = &args.api_key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let none = |reason: &str| {
        fail(&format!(
            "cannot get the models of {url}: {reason}; start a server with mlx serve, or pass its address with --url"
        ))
    };
    let mut response = request.call().map_err(|error| none(&error.to_string()))?;
    let text = response.body_mut().read_to_string().map_err(|error| none(&error.to_string()))?;
    if response.status() == 401 {
        return Err(fail(&format!("{url} requires an API key; pass it with --api-key")));
    }
    let list: Value = serde_json::from_str(&text).map_err(|_| none("its response is not JSON"))?;
    let models = list["data"].as_array().ok_or_else(|| none("its response has no list"))?;
    let has_name = |model: &&Value, name: &str| {
        let aliases = model["aliases"].as_array().into_iter().flatten();
        model["id"] == name || aliases.into_iter().any(|alias| alias == name)
    };
    let model = match &args.model {
        None => models.first().ok_or_else(|| none("it serves no model"))?,
        Some(name) => models.iter().find(|model| has_name(model, name)).ok_or_else(|| {
            let known: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
            fail(&format!("--model: {name:?} is not served; available: {}", known.join(", ")))
        })?,
    };
    let name = args.model.clone().or_else(|| model["id"].as_str().map(str::to_owned)).unwrap_or_default();
    let key = args.api_key.clone().unwrap_or_else(|| "none".to_owned());
    Ok(Server { url, model: name, context: model["max_model_len"].as_u64(), key })
}

/// Replaces this process with the client.
fn execute(client: &Client, server: &Server, arguments: &[String]) -> Result<(), Failure> {
    let mut command = Command::new(client.name);
    command.envs((client.environment)(server)).args(arguments);
    // `exec` returns only on failure.
    let error = command.exec();
    Err(fail(&format!("{} cannot be run: {error}; install it with {}", client.name, client.package)))
}

/// Returns the equivalent shell commands.
fn script(client: &Client, server: &Server, arguments: &[String]) -> String {
    let mut lines = String::new();
    for (name, value) in (client.environment)(server) {
        lines += &["export ", name, "=", &quoted(&value), "\n"].concat();
    }
    let words: Vec<String> =
        std::iter::once(client.name.to_owned()).chain(arguments.iter().map(|word| quoted(word))).collect();
    lines + &words.join(" ") + "\n"
}

fn fail(message: &str) -> Failure {
    terminal::note(&format!("error: {message}"));
    Failure::Reported
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_what_is_executed() {
        let server = Server {
            url: "http://localhost:1".into(),
            model: "it's".into(),
            context: Some(4096),
            key: "k".into(),
        };
        let text = |client: &Client, more: &[&str]| {
            let more: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
            script(client, &server, &[(client.arguments)(&server), more].concat())
        };
        for client in &CLIENTS {
            let text = text(client, &["-p", "a b"]);
            assert!(text.contains("localhost:1") && text.ends_with(" -p 'a b'\n"), "{text}");
        }
        let claude = text(&CLIENTS[0], &[]);
        assert!(claude.contains("export ANTHROPIC_MODEL='it'\\''s'\n"), "{claude}");
        assert!(claude.contains("export CLAUDE_CODE_MAX_CONTEXT_TOKENS=4096\n"), "{claude}");
        assert!(text(&CLIENTS[1], &[]).contains("model_context_window=4096"));
    }
}
