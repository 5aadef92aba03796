//! Clients that disconnect, hang, or send many or large requests affect no other client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use mlx_tests::skipped::possible;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const PATIENCE: Duration = Duration::from_secs(20);

fn endless(choices: usize) -> Value {
    json!({"prompt": "Once", "n": choices, "max_tokens": 8000, "ignore_eos": true})
}

fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// Reads the next response of a connection: its status, headers and body.
fn response(reader: &mut impl BufRead) -> (u16, String, Value) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).expect("a head"), 0, "the connection ended: {head}");
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let body = match length {
        Some(length) => part(reader, length),
        None if head.to_lowercase().contains("transfer-encoding: chunked") => chunks(reader),
        None => Vec::new(),
    };
    (status, head, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn part(reader: &mut impl BufRead, length: usize) -> Vec<u8> {
    let mut part = vec![0; length];
    reader.read_exact(&mut part).expect("a part of a body");
    part
}

/// Reads a chunked body: each chunk follows its length, and an empty one ends it.
fn chunks(reader: &mut impl BufRead) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a length");
        let length = usize::from_str_radix(line.trim(), 16).expect("a length");
        body.extend(part(reader, length));
        assert_eq!(part(reader, 2), b"\r\n");
        if length == 0 {
            return body;
        }
    }
}

/// Sends bytes on a new connection and reads one response.
fn ask(server: &Server, bytes: &[u8]) -> (u16, String, Value) {
    let mut connection = server.connect_bare();
    connection.set_read_timeout(Some(PATIENCE)).expect("a socket");
    connection.write_all(bytes).expect("it is sent");
    response(&mut BufReader::new(connection))
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Clients that send several requests at once still get complete answers.
#[test]
fn a_client_that_leaves_is_noticed() {
    let server = Server::start_slow(&SERVER, &[]);
    let next = request("/v1/completions", "", &"x".repeat(40_000));
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let cases = [(false, ""), (true, ""), (true, "\r\n"), (true, health), (true, &next)];
    for (index, (is_streamed, tail)) in cases.iter().enumerate() {
        let mut connection = server.connect_bare();
        let mut body = endless(2);
        body["stream"] = json!(is_streamed);
        let text = request("/v1/completions", "", &body.to_string()) + tail;
        connection.write_all(text.as_bytes()).expect("it is sent");
        server.wait_for("mlx_requests_running", 2);
        drop(connection);
        server.wait_for("mlx_requests_running", 0);
        let abandoned = format!("mlx_generations_total{{reason=\"abandoned\"}} {}", 2 * (index + 1));
        assert!(server.metrics().contains(&abandoned), "{} bytes behind: {}", tail.len(), server.metrics());
    }
}

/// The server cannot distinguish a client that closed one direction from one that closed both, until it is too late.
#[test]
fn a_half_closed_connection_counts_as_closed() {
    let server = Server::start_slow(&SERVER, &[]);
    let mut connection = server.connect("/v1/completions", &endless(1));
    server.wait_for("mlx_requests_running", 1);
    connection.shutdown(Shutdown::Write).expect("a socket");
    server.wait_for("mlx_requests_running", 0);
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).expect("the end");
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn requests_behind_one_another_are_answered_in_order() {
    let server = Server::start(&SERVER, &[]);
    let short = json!({"prompt": "Once", "max_tokens": 3, "ignore_eos": true}).to_string();
    let long = json!({"content": "a ".repeat(1 << 20)}).to_string();
    let requests = [("/v1/completions", &short), ("/tokenize", &long), ("/v1/completions", &short)];
    let mut connection = server.connect_bare();
    let text: String = requests.iter().map(|(path, body)| request(path, "", body)).collect();
    let mut writer = connection.try_clone().expect("a socket");
    std::thread::scope(|threads| {
        threads.spawn(move || writer.write_all(text.as_bytes()));
        let mut reader = BufReader::new(&mut connection);
        let answers = requests.map(|_| response(&mut reader));
        assert!(answers.iter().all(|answer| answer.0 == 200), "{answers:?}");
        assert!(answers[0].2["choices"].is_array() && answers[1].2["count"].is_u64());
    });
}

#[test]
fn too_many_connections_are_told_so() {
    let server = Server::start(&SERVER, &["--max-connections", "2"]);
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let open: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = BufReader::new(server.connect_bare());
            reader.get_mut().write_all(health).expect("it is sent");
            assert_eq!(response(&mut reader).0, 200);
            reader
        })
        .collect();
    let (status, head, body) = ask(&server, health);
    assert_eq!((status, &body["error"]["code"]), (503, &json!("too_many_connections")), "{head}");
    assert!(head.contains("retry-after: 1\r\n") && head.contains("connection: close"), "{head}");
    drop(open);
    wait_until("the others are gone", || ask(&server, health).0 == 200);
}

#[test]
fn a_body_announced_as_too_large_is_refused_at_once() {
    let server = Server::start(&SERVER, &["--max-body", "1MB"]);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n";
    for (more, body) in [("Expect: 100-continue\r\n", 0), ("", 0), ("", 3_000_000)] {
        let begin = Instant::now();
        let (status, _, error) = ask(&server, format!("{head}{more}\r\n{}", "x".repeat(body)).as_bytes());
        assert_eq!((status, &error["error"]["code"]), (413, &json!("body_too_large")));
        assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    }
}

#[test]
fn errors_before_an_endpoint_are_json_too() {
    let server = Server::start(&SERVER, &[]);
    for (text, status) in [
        ("GET /health HTTP/1.1\r\n\r\n", 400),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        ("GET /v1/models/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("GET /v1/responses/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("DELETE /v1/responses/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("GET /v1/responses/a?stream=perhaps HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("GET /v1/responses/a/input_items?limit=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("GET /v1/models/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ] {
        let answer = ask(&server, text.as_bytes());
        assert_eq!(answer.0, status, "{text} {answer:?}");
        assert!(answer.2["error"]["message"].is_string(), "{text} {answer:?}");
    }
}

#[test]
fn a_long_user_is_cut_in_the_log() {
    let server = Server::start(&SERVER, &[]);
    let user = "someone-".repeat(1 << 17);
    server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1, "user": user}));
    let text = format!("{} /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "X".repeat(50_000));
    ask(&server, text.as_bytes());
    wait_until("both are logged", || server.log().matches("\"message\":\"request\"").count() >= 2);
    assert!(server.log().contains("\"user\":\"someone-"));
    assert!(server.log().lines().all(|line| line.len() < 1000));
}

/// Returns true if programs started by the tests ignore SIGHUP: a shell cannot trap a signal that was ignored when it started.
fn hangup_is_ignored() -> bool {
    let shell = Command::new("sh").args(["-c", "trap 'exit 0' HUP; kill -s HUP $$; exit 1"]).status();
    !shell.expect("sh runs").success()
}

#[test]
fn a_closed_terminal_drains_the_server_unless_nohup_started_it() {
    let short = json!({"prompt": "a", "max_tokens": 50, "ignore_eos": true, "stream": true});
    let with_nohup = ["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\"", SERVER[0]];
    for (program, lives_on) in [(&SERVER[..], false), (&with_nohup, true)] {
        // The tests may run under nohup, and their child processes inherit that.
        if !lives_on && !possible(!hangup_is_ignored(), "a test that nohup did not start") {
            continue;
        }
        let mut server = Server::start_slow(program, &[]);
        let mut stream = server.connect("/v1/completions", &short);
        server.wait_for("mlx_requests_running", 1);
        server.signal("HUP");
        if lives_on {
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(server.get("/ready").status, 200);
            server.signal("TERM");
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it ends by itself");
        assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
        assert!(server.wait().success());
    }
}

#[test]
fn a_prompt_cache_that_cannot_be_written_is_refused_at_the_start() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let folder = file.path().join("cache");
    let mut child = Command::new(SERVER[0])
        .args(["--port", "0", "--prompt-cache-dir"])
        .arg(&folder)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut error = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    error.read_line(&mut line).expect("an error");
    child.kill().ok();
    child.wait().expect("it ends");
    assert!(line.starts_with("error: --prompt-cache-dir: ") && line.contains("cache"), "{line}");
}

/// A batch counts as one request in the queue, and its texts take turns with later requests.
#[test]
fn a_batch_of_embeddings_shuts_nobody_out() {
    let server = Server::start_slow(&SERVER, &["--max-running", "2", "--max-waiting", "2"]);
    let inputs = vec![[1, 9, 30].repeat(500); 200];
    let batch = server.connect("/v1/embeddings", &json!({"input": inputs}));
    server.wait_for("mlx_requests_waiting", 1);
    for priority in ["normal", "high"] {
        let chat =
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "priority": priority});
        let reply = server.post("/v1/chat/completions", &chat);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    // A text that yielded its slot to a chat waits with the rest of its batch.
    assert!(server.figure("mlx_requests_waiting") > 0, "the chats waited for the whole batch");
    drop(batch);
    server.wait_for("mlx_requests_waiting", 0);
    server.wait_for("mlx_requests_running", 0);
}

/// A client without a slot gets one from a client that has several.
#[test]
fn clients_are_told_apart_by_their_keys() {
    let keys = ["--api-key", "one", "--api-key", "two", "--max-running", "2"];
    let server = Server::start_slow(&SERVER, &keys);
    let send = |key: &str, body: &Value| -> TcpStream {
        let mut connection = server.connect_bare();
        connection.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let key = format!("Authorization: Bearer {key}\r\n");
        let text = request("/v1/completions", &key, &body.to_string());
        connection.write_all(text.as_bytes()).expect("it is sent");
        connection
    };
    let running = || {
        let text = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\nConnection: close\r\n\r\n";
        let (mut connection, mut page) = (server.connect_bare(), String::new());
        connection.write_all(text.as_bytes()).expect("it is sent");
        connection.read_to_string(&mut page).expect("a page");
        page.contains("mlx_requests_running{model=\"tiny\"} 2")
    };
    let _many: Vec<_> = (0..3).map(|_| send("one", &endless(1))).collect();
    wait_until("both places are taken", running);
    let short = json!({"prompt": "a", "max_tokens": 2, "ignore_eos": true});
    let answer = response(&mut BufReader::new(send("two", &short)));
    assert_eq!(answer.0, 200, "{answer:?}");
    wait_until("the others run on", running);
}
