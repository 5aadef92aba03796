//! `mlx ps` and `mlx stop`: the models in the memory of a running server.

use std::process::{Command, Output};

use mlx_tests::server::Server;
use serde_json::{Value, json};

const MLX: &str = env!("CARGO_BIN_EXE_mlx");

fn run(arguments: &[&str]) -> Output {
    Command::new(MLX).args(arguments).env_remove("MLX_API_KEY").output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn loaded_models_are_listed_and_stopped() {
    let server = Server::start(&[MLX, "serve"], &["--idle-timeout", "600"]);
    let url = format!("http://{}", server.address());
    let none = run(&["ps", "--url", &url]);
    assert!(none.status.success() && text(&none.stderr).contains("no model is loaded"), "{none:?}");
    server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    let table = text(&run(&["ps", "--url", &url]).stdout);
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert!(row[0] == "tiny" && row.contains(&"loaded") && row.ends_with(&["in", "10", "min"]), "{table}");
    let listed: Value = serde_json::from_slice(&run(&["ps", "--json", "--url", &url]).stdout).expect("json");
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!("tiny"), &json!("loaded")));
    let stopped = run(&["stop", "tiny", "--url", &url]);
    assert!(stopped.status.success() && text(&stopped.stderr).contains("tiny is unloaded"), "{stopped:?}");
    assert_eq!(text(&run(&["ps", "--json", "--url", &url]).stdout).trim(), "[]");
    let unknown = run(&["stop", "nobody", "--url", &url]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("nobody"), "{unknown:?}");
    drop(server);
    let gone = run(&["ps", "--url", &url]);
    assert!(
        !gone.status.success()
            && text(&gone.stderr).contains(&format!("no server runs at {url}; start one with `mlx serve`")),
        "{gone:?}"
    );
}
