//! `mlx launch`: connects a coding agent to the server, by printing the commands or running the agent.

mod clients;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::exit_code::Failure;
use crate::server_client::{ServerArgs, fail};
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

    #[command(flatten)]
    server: ServerArgs,

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
    let url = args.server.base().to_owned();
    let models = args.server.models(START_TIMEOUT)?;
    let has_name = |model: &&Value, name: &str| {
        let aliases = model["aliases"].as_array().into_iter().flatten();
        model["id"] == name || aliases.into_iter().any(|alias| alias == name)
    };
    let model = match &args.model {
        None => models.first().ok_or_else(|| fail(&format!("{url} serves no model")))?,
        Some(name) => models.iter().find(|model| has_name(model, name)).ok_or_else(|| {
            let known: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
            fail(&format!("--model: {name:?} is not served; available: {}", known.join(", ")))
        })?,
    };
    let name = args.model.clone().or_else(|| model["id"].as_str().map(str::to_owned)).unwrap_or_default();
    let key = args.server.api_key.clone().unwrap_or_else(|| "none".to_owned());
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
