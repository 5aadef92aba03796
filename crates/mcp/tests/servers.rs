//! Servers that work, and servers that die, hang, flood or send garbage. They are `tests/mcp/server.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx_mcp::{Limits, Output, Part, Server, ServerConfig, Toolset, Transport};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Map, Value, json};

const LIMITS: Limits = Limits { start: Duration::from_secs(20), call: Duration::from_secs(20) };
const SHORT: Limits = Limits { start: Duration::from_secs(1), call: Duration::from_secs(1) };

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp/server.py")
}

fn server(flags: &[&str], limits: Limits) -> Server {
    labelled("test", flags, limits)
}

fn labelled(label: &str, flags: &[&str], limits: Limits) -> Server {
    let mut args = vec![script().display().to_string()];
    args.extend(flags.iter().map(ToString::to_string));
    let env = BTreeMap::from([("OF_THE_FILE".to_owned(), "yes".to_owned())]);
    let transport = Transport::Process { command: "python3".into(), args, env, cwd: None };
    Server::new(config(label, transport), limits)
}

fn config(label: &str, transport: Transport) -> ServerConfig {
    ServerConfig { label: label.into(), address: String::new(), transport }
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

async fn call(server: &Server, tool: &str, arguments: Value) -> Result<Output, String> {
    server.call(tool, object(&arguments)).await
}

fn text(text: &str) -> Output {
    Output { parts: vec![Part::Text(text.to_owned())], is_error: false }
}

/// Waits until a condition holds.
async fn eventually(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

fn is_gone(id: &str) -> bool {
    let pid = Pid::from_raw(id.trim().parse().expect("an id")).expect("an id");
    // A process that nobody has waited for yet is a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    stat.contains(") Z ") || test_kill_process(pid).is_err()
}

#[tokio::test]
async fn tools_are_listed_and_called() {
    let server = server(&[], LIMITS);
    let tools = server.tools().await.expect("it starts");
    assert_eq!((tools[0].name.as_str(), tools[0].description.as_str()), ("tide", "Looks up a tide."));
    assert_eq!(tools[0].schema["required"], json!(["place"]));
    assert_eq!(call(&server, "tide", json!({"place": "a'b"})).await, Ok(text("high tide at <a'b>")));
    assert_eq!(call(&server, "sum", json!({"a": 1, "b": 2.5})).await, Ok(text("{\"sum\":3.5}")));
    let picture = call(&server, "picture", json!({})).await.expect("a picture");
    assert!(
        matches!(&picture.parts[..], [Part::Picture(bytes), Part::Text(_)] if bytes.starts_with(b"\x89PNG"))
    );
    let failed = call(&server, "fail", json!({})).await;
    assert_eq!(failed, Ok(Output { is_error: true, ..text("it failed on purpose") }));
    let unknown = call(&server, "nothing", json!({})).await.expect_err("no such tool");
    assert!(
        unknown.starts_with("the MCP server \"test\" failed: it reported an error: no tools/call nothing")
    );
    // The server repeats the name in its error.
    let long = call(&server, &"x".repeat(100_000), json!({})).await.expect_err("no such tool");
    assert!(long.len() < 3000 && long.contains("bytes were left out"), "{} bytes", long.len());
}

#[tokio::test]
async fn garbage_is_ignored() {
    let server = server(&["--start", "garbage"], LIMITS);
    assert_eq!(call(&server, "babble", json!({})).await, Ok(text("still here")));
    assert_eq!(call(&server, "wrong id", json!({})).await, Ok(text("for you")));
    assert_eq!(call(&server, "long line", json!({})).await, Ok(text("after the line")));
}

#[tokio::test]
async fn a_server_that_dies_is_explained_and_started_again() {
    let server = server(&[], LIMITS);
    let reason = call(&server, "leave", json!({})).await.expect_err("it died");
    assert!(reason.contains("it ended (exit status: 3)") && reason.contains("leaving now"), "{reason}");
    assert!(!reason.contains('\u{1b}'), "{reason}");
    assert_eq!(call(&server, "tide", json!({"place": "x"})).await, Ok(text("high tide at <x>")));
}

#[tokio::test]
async fn servers_that_do_not_start_are_explained() {
    let reason = |flags: &'static [&'static str], limits| async move {
        server(flags, limits).tools().await.expect_err("it cannot be used")
    };
    let died = reason(&["--start", "die"], LIMITS).await;
    assert!(died.contains("exit status: 1") && died.contains("no such setting"), "{died}");
    let hung = reason(&["--start", "hang"], SHORT).await;
    assert!(hung.contains("did not list its tools within 1 seconds"), "{hung}");
    let flooded = reason(&["--start", "flood"], LIMITS).await;
    assert!(flooded.contains("more than 64 MiB"), "{flooded}");
    let refused = reason(&["--start", "error"], LIMITS).await;
    assert!(refused.contains("not today"), "{refused}");
    let pages = reason(&["--start", "pages", "--tools", "tide"], LIMITS).await;
    assert!(pages.contains("pages"), "{pages}");
    let many = reason(&["--start", "many"], LIMITS).await;
    assert!(many.contains("more than 256 tools"), "{many}");
    let transport = Transport::Process {
        command: "no-such-program".into(),
        args: vec![],
        env: BTreeMap::new(),
        cwd: None,
    };
    let missing = Server::new(config("m", transport), LIMITS);
    let missing = missing.tools().await.expect_err("there is no such program");
    assert!(missing.contains("\"no-such-program\" was not found"), "{missing}");
}

#[tokio::test]
async fn a_call_that_hangs_or_floods_ends_and_the_next_one_works() {
    let server = server(&[], Limits { start: LIMITS.start, ..SHORT });
    let slow = call(&server, "slow", json!({"seconds": 1.5})).await.expect_err("too slow");
    assert!(slow.contains("did not answer the call within 1 seconds"), "{slow}");
    let late = call(&server, "tide", json!({"place": "x"})).await;
    assert_eq!(late, Ok(text("high tide at <x>")), "the late answer belongs to the old call");
    let reason = call(&server, "flood", json!({})).await.expect_err("it floods");
    assert!(reason.contains("64 MiB") || reason.contains("within 1 seconds"), "{reason}");
}

#[tokio::test]
async fn a_server_and_its_processes_end_with_the_connection() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pid").display().to_string();
    let server = server(&["--stubborn", "--pid", &file], LIMITS);
    let child = call(&server, "child", json!({})).await.expect("an id").text();
    let own = std::fs::read_to_string(&file).expect("it was written");
    assert!(!is_gone(&own) && !is_gone(&child));
    drop(server);
    assert!(eventually(|| is_gone(&own) && is_gone(&child)).await, "they still run");
}

#[tokio::test]
async fn a_server_gets_its_variables_and_none_of_our_secrets() {
    let seen = call(&server(&[], LIMITS), "environment", json!({})).await.expect("a list").text();
    assert!(seen.contains("OF_THE_FILE=yes") && seen.contains("PATH="), "{seen}");
    assert!(!seen.contains("HF_TOKEN=") && !seen.contains("MLX_API_KEY="), "{seen}");
}

#[tokio::test]
async fn names_of_two_servers_do_not_collide() {
    let one = |label: &str| Arc::new(labelled(label, &["--tools", "tide"], LIMITS));
    let dead = Arc::new(server(&["--start", "die"], LIMITS));
    let set = Toolset::open(&[one("a"), dead, one("b c")], &[]).await;
    let names: Vec<&str> = set.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a__tide", "b_c__tide"]);
    assert!(set.servers[1].1.as_ref().is_err_and(|reason| reason.contains("no such setting")));
    let tool = set.approved("b_c__tide").expect("it is listed");
    assert_eq!(tool.definition()["function"]["name"], "b_c__tide");
    assert_eq!(
        call(&tool.server, &tool.tool.name, json!({"place": "x"})).await,
        Ok(text("high tide at <x>"))
    );
}

/// A server over HTTP, ended on drop.
struct HttpServer(std::process::Child, u16);

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn http_server(token: &str) -> HttpServer {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("port");
    let mut command = std::process::Command::new("python3");
    command.arg(script()).arg("--http").arg(&file).args(["--token", token]);
    let child = command.spawn().expect("it starts");
    assert!(eventually(|| file.exists()).await, "it does not start");
    let port = std::fs::read_to_string(&file).expect("a port").parse().expect("a port");
    HttpServer(child, port)
}

#[tokio::test]
async fn servers_over_http_are_used_with_their_headers() {
    let running = http_server("secret").await;
    let at = |path: &str, token: &str| {
        let headers = BTreeMap::from([("Authorization".to_owned(), format!("Bearer {token}"))]);
        let url = format!("http://127.0.0.1:{}{path}", running.1);
        Server::new(config("web", Transport::Http { url, headers }), LIMITS)
    };
    for path in ["/mcp", "/events"] {
        let server = at(path, "secret");
        assert_eq!(server.tools().await.expect("it answers")[0].name, "tide");
        assert_eq!(call(&server, "tide", json!({"place": "x"})).await, Ok(text("high tide at <x>")));
    }
    let server = at("/events", "secret");
    let flooded = call(&server, "flood", json!({})).await.expect_err("it floods");
    assert!(flooded.contains("more than 64 MiB"), "{flooded}");
    assert_eq!(call(&server, "tide", json!({"place": "x"})).await, Ok(text("high tide at <x>")));
    let reason = at("/mcp", "wrong").tools().await.expect_err("no access");
    assert!(reason.contains("requires a login") && !reason.contains("wrong"), "{reason}");
    assert!(at("/moved", "secret").tools().await.is_err(), "a redirect could leak the headers");
    let port = running.1;
    drop(running);
    let url = format!("http://127.0.0.1:{port}/mcp?key=hidden");
    let transport = Transport::Http { url, headers: BTreeMap::new() };
    let gone = Server::new(config("web", transport), LIMITS).tools().await;
    let reason = gone.expect_err("nothing listens");
    assert!(reason.to_lowercase().contains("refused") && !reason.contains("hidden"), "{reason}");
}
