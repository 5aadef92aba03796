//! `mlx launch`: a client gets the address, the model and its context from a running server.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use mlx_tests::server::Server;

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

#[test]
fn a_client_gets_what_it_needs() {
    let server = Server::start(&[MLX, "serve"], &["--api-key", "secret"]);
    let url = format!("http://{}", server.address());
    let out = launch(&["claude", "--url", &url, "--api-key", "secret"], "/usr/bin:/bin");
    let text = String::from_utf8(out.stdout).expect("text");
    for line in [
        format!("ANTHROPIC_BASE_URL={url}"),
        "ANTHROPIC_AUTH_TOKEN=secret".into(),
        "ANTHROPIC_MODEL=tiny".into(),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS=256".into(),
    ] {
        assert!(text.contains(&format!("export {line}\n")), "{line}: {text}");
    }
    assert!(text.ends_with("claude\n"), "{text}");

    // A program of that name on the path is run with the same environment and arguments.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("claude");
    std::fs::write(&program, "#!/bin/sh\necho \"$ANTHROPIC_MODEL $ANTHROPIC_BASE_URL $*\"\n")
        .expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let out = launch(&["claude", "--url", &url, "--api-key", "secret", "--exec", "--", "-p", "a b"], &path);
    assert_eq!(String::from_utf8_lossy(&out.stdout), format!("tiny {url} -p a b\n"));

    for (arguments, words) in [
        (vec!["claude", "--url", &url], "--api-key"),
        (vec!["claude", "--url", &url, "--api-key", "secret", "-m", "other"], "there are: tiny"),
        (vec!["aider", "--url", &url, "--api-key", "secret", "--exec"], "pip install aider-chat"),
        (vec!["claude", "--url", "http://127.0.0.1:9"], "mlx serve"),
    ] {
        let out = launch(&arguments, "/nowhere");
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains(words), "{arguments:?}: {error}");
    }
}
