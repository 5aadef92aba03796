//! The server under load: a full queue, priorities, memory, disconnected clients, shutdown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mlx_tests::Dice;
use mlx_tests::server::Server;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const LONG: usize = 6000;

fn stream(tokens: usize) -> Value {
    json!({"prompt": "The waves", "max_tokens": tokens, "ignore_eos": true, "stream": true})
}

/// Starts a stream and waits for its first event.
fn begun(server: &Server, tokens: usize) -> BufReader<TcpStream> {
    let mut reader = BufReader::new(server.connect("/v1/completions", &stream(tokens)));
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        assert_ne!(reader.read_line(&mut line).expect("it begins"), 0);
    }
    reader
}

#[test]
fn a_full_queue_sends_retry_after() {
    let server = Server::start_slow(&SERVER, &["--max-running", "1", "--max-waiting", "2"]);
    let running = begun(&server, LONG);
    let waiting = server.connect("/v1/completions", &stream(LONG));
    server.wait_for("mlx_requests_waiting", 1);
    let refused = |request: &Value, path: &str| {
        let reply = server.post(path, request);
        assert_eq!((reply.status, &reply.body["error"]["type"]), (429, &json!("rate_limit_error")));
        let seconds: u64 = reply.header("retry-after").parse().expect("seconds");
        assert!((1..=600).contains(&seconds), "{seconds}");
    };
    // A request takes one slot of the queue, however many choices it has.
    let mut many = stream(LONG);
    many["n"] = json!(5);
    let third = server.connect("/v1/completions", &many);
    server.wait_for("mlx_requests_waiting", 2);
    let prompt = json!({"prompt": "a", "max_tokens": 1});
    refused(&prompt, "/v1/completions");
    refused(&json!({"prompt": ["a", "b"], "max_tokens": 1}), "/v1/completions");
    refused(&json!({"input": ["a", "b"]}), "/v1/embeddings");
    assert_eq!(server.figure("mlx_requests_waiting"), 2);
    drop((running, waiting, third));
    server.wait_for("mlx_requests_running", 0);
    assert_eq!(server.post("/v1/completions", &prompt).status, 200);
}

#[test]
fn a_higher_priority_runs_first() {
    let server = Server::start_slow(&SERVER, &["--max-running", "1"]);
    let running = begun(&server, LONG);
    let ask = |priority: &str| {
        let request = json!({"prompt": "a", "max_tokens": 1, "ignore_eos": true, "priority": priority});
        let reply = server.post("/v1/completions", &request);
        assert_eq!(reply.status, 200, "{}", reply.body);
        Instant::now()
    };
    std::thread::scope(|threads| {
        let low = threads.spawn(|| ask("low"));
        server.wait_for("mlx_requests_waiting", 1);
        // It preempts the running request.
        let high = ask("high");
        assert!(!low.is_finished() && server.figure("mlx_preemptions_total") > 0);
        drop(running);
        assert!(high < low.join().expect("an answer"), "the one that came later goes first");
    });
}

#[test]
fn a_request_that_never_fits_the_memory_is_refused_with_numbers() {
    let server = Server::start_slow(&SERVER, &["--memory-budget", "4MiB"]);
    let words = [1, 9, 30].repeat(1000);
    for (path, request, param) in [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 8000}), "max_tokens"),
        ("/v1/completions", json!({"prompt": words, "max_tokens": 1}), "prompt"),
        ("/v1/embeddings", json!({"input": words}), "input"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 8000}),
            "max_completion_tokens",
        ),
    ] {
        let reply = server.post(path, &request);
        assert_eq!((reply.status, &reply.body["error"]["param"]), (400, &json!(param)), "{}", reply.body);
        let message = reply.body["error"]["message"].as_str().expect("text");
        assert!(message.starts_with(param) && message.matches("iB").count() == 2, "{message}");
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 9})).status, 200);
}

#[test]
fn disconnected_clients_leave_nothing_reserved() {
    let server = Server::start_slow(&SERVER, &[]);
    let figures = || ["mlx_reserved_bytes", "mlx_used_bytes"].map(|name| server.figure(name));
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
    let before = figures();
    let mut dice = Dice::new(7);
    for _ in 0..100 {
        let mut request = stream(LONG);
        request["stream"] = json!(dice.below(2) == 0);
        request["n"] = json!(1 + dice.below(3));
        let text = request.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        let request_bytes = head + &text;
        let mut connection = server.connect_bare();
        let cut = if dice.below(3) == 0 { dice.below(request_bytes.len()) } else { request_bytes.len() };
        connection.write_all(&request_bytes.as_bytes()[..cut]).expect("it is sent");
        std::thread::sleep(Duration::from_millis(dice.below(12) as u64));
        connection.set_nonblocking(true).expect("a socket");
        drop(connection.read(&mut [0; 200]));
    }
    server.wait_for("mlx_requests_waiting", 0);
    server.wait_for("mlx_requests_running", 0);
    assert_eq!(figures(), before);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn a_shutdown_ends_every_stream() {
    let mut server = Server::start_slow(&SERVER, &["--shutdown-timeout", "0.3"]);
    let streams: Vec<_> = (0..24).map(|_| server.connect("/v1/completions", &stream(LONG))).collect();
    server.wait_for("mlx_requests_running", 24);
    server.terminate();
    for mut stream in streams {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it ends by itself");
        let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let [.., last, done] = events[..] else { panic!("{text}") };
        assert_eq!(done, "[DONE]");
        let last: Value = serde_json::from_str(last).expect("an event");
        assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    }
    assert!(server.wait().success());
}
