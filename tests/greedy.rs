//! Oversized and awkward HTTP requests: they are rejected early with a clear error, while small requests continue.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mlx_tests::server::Server;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

/// Returns the status, field and code of an error.
fn refusal(server: &Server, path: &str, request: &Value) -> (u16, Value, Value) {
    let reply = server.post(path, request);
    let error = &reply.body["error"];
    (reply.status, error["param"].clone(), error["code"].clone())
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[test]
fn a_prompt_beyond_the_context_has_openais_code() {
    let server = Server::start(&SERVER, &[]);
    let code = json!("context_length_exceeded");
    // Slightly too many tokens, far too many, and too many given as ids.
    for words in [400, 100_000] {
        let text = "waves ".repeat(words);
        for (path, field, request) in [
            ("/v1/completions", "prompt", json!({"prompt": text})),
            ("/v1/completions", "prompt", json!({"prompt": vec![9; words]})),
            ("/v1/embeddings", "input", json!({"input": text, "truncate": false})),
            ("/v1/chat/completions", "messages", json!({"messages": user(&text)})),
            (
                "/v1/chat/completions",
                "messages",
                json!({"messages": user(&text), "context_policy": "evict-turns"}),
            ),
        ] {
            assert_eq!(refusal(&server, path, &request), (400, json!(field), code.clone()), "{path} {words}");
        }
    }
}

/// Inputs are counted before a model is loaded for them.
#[test]
fn too_many_prompts_are_counted_before_anything_is_done_for_them() {
    let server = Server::start(&SERVER, &[]);
    let prompts = vec!["a"; 300_000];
    for (path, field, request) in [
        ("/v1/completions", "prompt", json!({"prompt": prompts})),
        ("/v1/completions", "n", json!({"prompt": "a", "n": 129})),
        ("/v1/chat/completions", "n", json!({"messages": user("a"), "n": 129})),
        ("/v1/embeddings", "input", json!({"input": prompts})),
        ("/v1/chat/completions", "messages", json!({"messages": vec![user("a")[0].clone(); 70_000]})),
    ] {
        let (status, param, _) = refusal(&server, path, &request);
        assert_eq!((status, param), (400, json!(field)), "{path}");
    }
    assert_eq!(server.get("/v1/models").body["data"][0]["loaded"], false, "no model must be loaded");
}

#[test]
fn small_requests_pass_large_ones() {
    let server = Server::start(&SERVER, &["--preload"]);
    let large = json!({"content": "The keeper counts the waves. ".repeat(60_000)});
    std::thread::scope(|threads| {
        let busy: Vec<_> = (0..4).map(|_| threads.spawn(|| server.post("/tokenize", &large))).collect();
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..5 {
            assert_eq!(server.post("/tokenize", &json!({"content": "waves"})).status, 200);
            let chat = json!({"messages": user("waves"), "max_tokens": 1});
            assert_eq!(server.post("/v1/chat/completions", &chat).status, 200);
        }
        assert!(
            !busy.iter().all(std::thread::ScopedJoinHandle::is_finished),
            "the small ones were not first"
        );
        for client in busy {
            let reply = client.join().expect("an answer");
            let tokens = reply.body["tokens"].as_array().expect("a list").len();
            assert_eq!((reply.status, reply.body["count"].as_u64()), (200, Some(tokens as u64)));
        }
    });
}

#[test]
fn a_long_list_of_tokens_is_whole() {
    let server = Server::start(&SERVER, &[]);
    for words in [0, 1, 1000, 4000] {
        let text = "The keeper é ".repeat(words);
        let tokens = server.post("/tokenize", &json!({"content": text, "with_pieces": true})).body;
        let list = tokens["tokens"].as_array().expect("a list");
        assert_eq!(tokens["count"], json!(list.len()));
        let ids: Vec<&Value> = list.iter().map(|token| &token["id"]).collect();
        assert_eq!(server.post("/detokenize", &json!({"tokens": ids})).body["content"], json!(text));
        let rendered = server.post("/v1/chat/render", &json!({"messages": user(&text)})).body;
        let again = server.post("/tokenize", &json!({"content": rendered["prompt"]})).body;
        assert_eq!((&rendered["tokens"], &rendered["count"]), (&again["tokens"], &again["count"]));
    }
}

/// Sends the headers of a request, and none or only some of its body.
fn begin(server: &Server, length: usize, sent: usize, more: &str) -> TcpStream {
    let mut stream = server.connect_bare();
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let head =
        format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).expect("it is sent");
    // The server may answer before it has read the whole body.
    stream.write_all(&vec![b' '; sent]).ok();
    stream
}

fn answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !answer.windows(2).any(|end| end == b"}}") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&part[..count]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bodies_that_are_withheld_hold_a_bounded_memory() {
    const BODY: usize = 2 << 20;
    let server = Server::start(&SERVER, &["--max-body", "2MiB", "--body-memory", "5MiB"]);
    let mut held = Vec::new();
    // Two requests hold memory once they are read; until then others may be read first.
    let full = loop {
        held.push(begin(&server, BODY, BODY - 1, ""));
        let full = answer(&mut begin(&server, BODY, BODY, ""));
        if !full.starts_with("HTTP/1.1 400") {
            break full;
        }
    };
    assert!(full.starts_with("HTTP/1.1 429") && full.contains("--body-memory"), "{full}");
    assert!(full.to_lowercase().contains("retry-after: "), "{full}");
    // Short requests need no reservation.
    assert_eq!(server.post("/tokenize", &json!({"content": "waves"})).status, 200);
    drop(held);
    let large = json!({"content": "w ".repeat(BODY / 3)});
    while server.post("/tokenize", &large).status == 429 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.post("/tokenize", &large).status, 200);
}

#[test]
fn a_body_is_refused_for_what_parsing_makes_of_it() {
    let server = Server::start(&SERVER, &["--max-body", "4MiB", "--body-memory", "8MiB"]);
    let numbers = server.post("/detokenize", &json!({"tokens": vec![1; 1 << 20]}));
    assert_eq!((numbers.status, numbers.body["error"]["code"].as_str()), (413, Some("body_too_large")));
    assert!(numbers.body["error"]["message"].as_str().is_some_and(|it| it.contains("--body-memory")));
}

#[test]
fn a_declared_length_over_the_limit_is_refused_at_once() {
    let server = Server::start(&SERVER, &["--max-body", "1MiB"]);
    for more in ["", "Expect: 100-continue\r\n"] {
        let refused = answer(&mut begin(&server, 2 << 20, 0, more));
        assert!(refused.starts_with("HTTP/1.1 413") && refused.contains("--max-body"), "{refused}");
    }
}

#[test]
fn what_cannot_be_tokenized_is_an_error_of_its_request() {
    let server = Server::start(&SERVER, &[]);
    // The text has no split point, and its length does not bound its token count.
    let reply = server.post("/tokenize", &json!({"content": "e".repeat(3 << 20)}));
    assert_eq!(
        (reply.status, reply.body["error"]["param"].as_str()),
        (400, Some("content")),
        "{}",
        reply.body["error"]
    );
    assert_eq!(server.post("/tokenize", &json!({"content": "waves"})).status, 200);
}

#[test]
fn numbers_and_messages_are_those_of_json() {
    let server = Server::start(&SERVER, &[]);
    let float = json!({"prompt": [9.0, 30.0], "max_tokens": 2.0, "seed": 7.0, "n": 1.0, "top_k": 5.0});
    let whole = json!({"prompt": [9, 30], "max_tokens": 2, "seed": 7, "n": 1, "top_k": 5});
    let text = |request: &Value| server.post("/v1/completions", request).body["choices"][0]["text"].clone();
    assert!(text(&float).is_string());
    assert_eq!(text(&float), text(&whole));
    for field in ["max_tokens", "n", "temperature", "stream", "stop", "logit_bias", "user", "seed", "top_k"] {
        let error = server.post("/v1/completions", &json!({"prompt": "a", field: {"a": ["b"]}})).body;
        let message = error["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.starts_with(field) && message.contains("must be"), "{message}");
        for word in ["usize", "u32", "f32", "expected", "invalid type", "sequence"] {
            assert!(!message.contains(word), "{message}");
        }
    }
}
