//! The log for humans: paths, reasons of errors, and no polls without `-v`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mlx_tests::model_folder;
use mlx_tests::server::Server;
use serde_json::{Value, json};

use super::SERVER;

/// A running server, ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the lines of the log for some requests, without their times.
fn lines(flags: &[&str]) -> Vec<String> {
    let mut command = Command::new(SERVER[0]);
    command.args(["--log", "text", "--port", "0", "-m"]).arg(model_folder("llama-f32")).args(flags);
    command.env_remove("MLX_LOG").env("MLX_ALL_MODELS", "false").stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let mut log = BufReader::new(running.0.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let greeting = log.find(|line| line.contains(" on http://")).expect("a greeting");
    let address = greeting.split("http://").nth(1).expect("an address");
    let address = address.split_whitespace().next().expect("an address").to_owned();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    for path in ["/health", "/v1/models", "/metrics", "/v1/models/none?secret=1", "/nowhere"] {
        agent.get(format!("http://{address}{path}")).call().expect("an answer");
    }
    let body = "{\"prompt\": \"a\", \"top_p\": 2, \"mood\": 1}";
    agent.post(format!("http://{address}/v1/completions")).send(body).expect("an answer");
    let last = |line: &String| line.contains("/v1/completions  400");
    let mut lines: Vec<String> = Vec::new();
    while !lines.last().is_some_and(last) {
        lines.push(log.next().expect("a line"));
    }
    lines.into_iter().filter(|line| line.contains(" ms")).collect()
}

#[test]
fn lines_have_paths_and_reasons_and_polls_only_with_v() {
    let found = lines(&[]);
    let expected = [
        ("GET /v1/models/none  404  ", "model: \"none\" does not exist"),
        ("GET /nowhere  404  ", "no endpoint at /nowhere"),
        ("POST /v1/completions  400  ", "top_p: is 2"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (line, (start, reason)) in found.iter().zip(expected) {
        assert!(line.contains(start) && line.contains(reason), "{line}");
    }
    let found = lines(&["-v"]);
    for poll in ["GET /health  200", "GET /v1/models  200", "GET /metrics  200"] {
        assert!(found.iter().any(|line| line.contains(poll)), "{poll}: {found:?}");
    }
}

/// The engine's thread logs the difference between two prompts.
#[test]
fn lines_of_the_engine_have_the_id_of_the_request() {
    let program = ["env", "MLX_LOG=info,mlx_core=debug", SERVER[0]];
    for flags in [&[][..], &["--in-process"]] {
        let server = Server::start(&program, flags);
        for (id, prompt) in [("first", "The waves of the sea"), ("second", "The waves of the lake")] {
            let request = json!({"prompt": prompt, "max_tokens": 1});
            let reply = server.send("POST", "/v1/completions", &[("x-request-id", id)], &request);
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
        let begin = Instant::now();
        let line = loop {
            let log = server.log();
            if let Some(line) = log.lines().find(|line| line.contains("a prompt differs")) {
                break line.to_owned();
            }
            assert!(begin.elapsed() < Duration::from_mins(1), "{log}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let line: Value = serde_json::from_str(&line).expect("json");
        assert_eq!(line["span"]["id"], "second", "{flags:?}: {line}");
    }
}
