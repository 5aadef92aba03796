//! `mlx launch`: a client gets the URL, the model and its context length from a running server.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use mlx_tests::server::Server;
use serde_json::json;

const MLX: &str = env!("CARGO_BIN_EXE_mlx");

fn launch(arguments: &[&str], path: &str) -> Output {
    Command::new(MLX)
        .arg("launch")
        .args(arguments)
        .env("PATH", path)
        .env_remove("MLX_API_KEY")
        .output()
        .expect("it runs")
}

/// A program that prints the clients' variables and its arguments.
const FAKE: &str = "#!/bin/sh
env | grep -E '^(ANTHROPIC|CLAUDE_CODE|OPENAI|OPENCODE|MLX_LAUNCH)_' | sort
for argument; do printf 'argument %s\\n' \"$argument\"; done
";

/// Returns the variables and arguments of each client, according to the client's documentation.
fn expected(client: &str, url: &str) -> Vec<String> {
    let opencode = json!({
        "model": "mlx/tiny",
        "small_model": "mlx/tiny",
        "provider": {"mlx": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mlx",
            "options": {"baseURL": format!("{url}/v1"), "apiKey": "secret"},
            "models": {"tiny": {"name": "tiny", "limit": {"context": 256, "output": 64}}},
        }},
    });
    let provider =
        format!("{{name=\"mlx\",base_url=\"{url}/v1\",wire_api=\"responses\",env_key=\"MLX_LAUNCH_KEY\"}}");
    let lines = match client {
        "claude" => format!(
            "ANTHROPIC_AUTH_TOKEN=secret\nANTHROPIC_BASE_URL={url}\nANTHROPIC_DEFAULT_HAIKU_MODEL=tiny\nANTHROPIC_MODEL=tiny\nCLAUDE_CODE_MAX_CONTEXT_TOKENS=256"
        ),
        "codex" => format!(
            "MLX_LAUNCH_KEY=secret\nargument -c\nargument model=\"tiny\"\nargument -c\nargument model_provider=\"mlx\"\nargument -c\nargument model_providers.mlx={provider}\nargument -c\nargument model_context_window=256"
        ),
        "opencode" => format!("OPENCODE_CONFIG_CONTENT={opencode}"),
        "qwen" => format!(
            "OPENAI_API_KEY=secret\nOPENAI_BASE_URL={url}/v1\nOPENAI_MODEL=tiny\nargument --auth-type\nargument openai"
        ),
        _ => {
            format!("OPENAI_API_BASE={url}/v1\nOPENAI_API_KEY=secret\nargument --model\nargument openai/tiny")
        }
    };
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn every_client_gets_what_it_needs_printed_and_executed() {
    let server = Server::start(&[MLX, "serve"], &["--api-key", "secret"]);
    let url = format!("http://{}", server.address());
    let folder = tempfile::tempdir().expect("a folder");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let lines = |output: Output| -> Vec<String> {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
    };
    for client in ["claude", "codex", "opencode", "qwen", "aider"] {
        let program = folder.path().join(client);
        std::fs::write(&program, FAKE).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let base = [client, "--url", &url, "--api-key", "secret"];
        let own = ["argument -p", "argument a 'b'"].map(str::to_owned);
        let expected = [expected(client, &url), own.to_vec()].concat();
        let executed = launch(&[&base[..], &["--exec", "--", "-p", "a 'b'"]].concat(), &path);
        assert_eq!(lines(executed), expected, "{client}");
        // A shell that runs the printed commands gives the same result.
        let printed = launch(&[&base[..], &["--", "-p", "a 'b'"]].concat(), "/nowhere");
        let printed = String::from_utf8(printed.stdout).expect("text");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &printed]).env_clear().env("PATH", &path);
        assert_eq!(lines(shell.output().expect("it runs")), expected, "{client}: {printed}");
    }
}

#[test]
fn what_cannot_be_launched_says_why() {
    let server = Server::start(&[MLX, "serve"], &["--api-key", "secret"]);
    let url = format!("http://{}", server.address());
    for (arguments, words) in [
        (vec!["claude", "--url", &url], "--api-key"),
        (vec!["claude", "--url", &url, "--api-key", "secret", "-m", "other"], "available: tiny"),
        (vec!["aider", "--url", &url, "--api-key", "secret", "--exec"], "pip install aider-chat"),
        (vec!["claude", "--url", "http://127.0.0.1:9"], "mlx serve"),
    ] {
        let out = launch(&arguments, "/nowhere");
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains(words), "{arguments:?}: {error}");
    }
}
