//! Chat templates that use excessive time or memory, through `mlx serve`: each fails only its own request, and its work stops when the client leaves.

use std::io::Write;
use std::time::{Duration, Instant};

use mlx_tests::model_copy;
use mlx_tests::server::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVE: [&str; 2] = [env!("CARGO_BIN_EXE_mlx"), "serve"];

/// The time limit for a bomb: five seconds of work, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Bytes of white space after a body, so that it queues with the long requests.
const LARGE: usize = 1 << 20;

/// A template with each kind of bomb, selected by the text of the first message.
const TEMPLATE: &str = "{%- set kind = messages[0].content -%}
{%- if kind == 'deep' -%}{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}deep
{%- elif kind == 'mapping' -%}{% set n = namespace(x={}) %}{% for i in range(99999) %}{% set n.x = {'a': n.x} %}{% endfor %}deep
{%- elif kind == 'work' -%}{% set s = 'a' * 10000000 %}{% for i in range(99999) %}{% set t = s | upper %}{% endfor %}
{%- elif kind == 'memory' -%}{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}
{%- elif kind == 'calls' -%}{% macro again(x) %}{{ again([x]) }}{% endmacro %}{{ again(1) }}
{%- else -%}{{ kind }}{%- endif %}";

const BOMBS: [&str; 5] = ["deep", "mapping", "work", "memory", "calls"];

fn chat(kind: &str) -> Value {
    json!({"messages": [{"role": "user", "content": kind}], "model": "bomb"})
}

/// Starts a server with an honest model, and one with a bomb as its template.
fn serve() -> (Server, TempDir) {
    let copy = model_copy("llama-f32");
    std::fs::write(copy.path().join("chat_template.jinja"), TEMPLATE).expect("it can be written");
    let bomb = format!("bomb={}", copy.path().display());
    (Server::start_on(&SERVE, &mlx_tests::model_folder("llama-f32"), &["-m", &bomb]), copy)
}

#[test]
fn a_bomb_fails_its_own_request() {
    let (server, _folder) = serve();
    for path in ["/v1/chat/completions", "/v1/chat/render"] {
        for kind in BOMBS {
            let begin = Instant::now();
            let reply = server.post(path, &chat(kind));
            let message = reply.body["error"]["message"].as_str().unwrap_or_default();
            assert_eq!(reply.status, 400, "{kind}: {}", reply.body);
            assert!(message.contains("chat_template.jinja"), "{kind}: {message}");
            assert!(begin.elapsed() < PATIENCE, "{kind} took {:?}", begin.elapsed());
            let honest =
                server.post("/v1/completions", &json!({"prompt": "The", "max_tokens": 1, "model": "tiny"}));
            assert_eq!(honest.status, 200, "after {kind}: {}", honest.body);
        }
    }
}

/// Four long requests are more than their client has slots. Their templates work for five seconds each.
#[test]
fn the_work_of_clients_that_have_left_ends() {
    let (server, _folder) = serve();
    let large = |request: Value| request.to_string() + &" ".repeat(LARGE);
    let post = |path: &str, body: &str| {
        let mut connection = server.connect_bare();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write_all(head.as_bytes()).expect("it is sent");
        connection.write_all(body.as_bytes()).expect("it is sent");
        connection
    };
    // Load the model.
    assert_eq!(server.post("/v1/chat/completions", &chat("The waves")).status, 200);
    let clients: Vec<_> = (0..4).map(|_| post("/v1/chat/completions", &large(chat("work")))).collect();
    std::thread::sleep(Duration::from_millis(700));
    drop(clients);
    let begin = Instant::now();
    let mut connection = post("/tokenize", &large(json!({"content": "The waves"})));
    let mut answer = [0; 12];
    connection.set_read_timeout(Some(PATIENCE)).expect("a socket");
    std::io::Read::read_exact(&mut connection, &mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert!(begin.elapsed() < Duration::from_secs(4), "the request waited for {:?}", begin.elapsed());
}
