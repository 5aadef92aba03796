//! Engines in child processes: whatever happens to a child, its clients notice only a pause.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use mlx_tests::deadly::{Deadly, exists, has_memory_limits, wait_until};
use mlx_tests::server::Server;
use mlx_tests::skipped::possible;
use mlx_tests::{model_copy, model_folder, piped};
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVER: &str = env!("CARGO_BIN_EXE_mlx-server");

/// Fields that differ between two runs of a request: ids, times, and counts that depend on other requests.
const VOLATILE: [&str; 15] = [
    "id",
    "seed",
    "item_id",
    "created",
    "created_at",
    "completed_at",
    "timings",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
    "cached_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "input_tokens",
];

/// Returns a value without its volatile fields.
fn stable(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str()));
            Value::Object(fields.map(|(name, value)| (name, stable(value))).collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(stable).collect()),
        other => other,
    }
}

/// The path and the body of a request.
type Request = (&'static str, Value);

/// Requests of four protocols: streamed and whole, with grammars, stop strings, penalties and several choices.
fn requests() -> Vec<Request> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"], "additionalProperties": false});
    let messages = json!([{"role": "user", "content": "The waves"}]);
    let chat = |seed: u32, stream: bool| {
        json!({"messages": messages, "max_tokens": 120, "seed": seed, "stream": stream, "logprobs": true,
            "top_logprobs": 2, "ignore_eos": true, "repetition_penalty": 1.1, "stream_options": {"include_usage": true}})
    };
    let whole = |mut request: Value| {
        request.as_object_mut().expect("an object").remove("stream_options");
        request
    };
    let constrained = json!({"messages": messages, "max_tokens": 90, "seed": 5, "stream": true,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let text = json!({"prompt": "The keeper", "ignore_eos": true, "max_tokens": 150, "seed": 6, "n": 2, "stop": ["zq"], "logprobs": 1});
    let anthropic =
        |stream: bool| json!({"messages": messages, "max_tokens": 130, "stream": stream, "temperature": 0});
    let ollama = |stream: bool| json!({"messages": messages, "stream": stream, "options": {"num_predict": 110, "seed": 7}, "model": "tiny"});
    let responses = |stream: bool| json!({"input": "The sea", "max_output_tokens": 140, "stream": stream, "temperature": 0});
    vec![
        ("/v1/chat/completions", chat(1, true)),
        ("/v1/chat/completions", whole(chat(2, false))),
        ("/v1/chat/completions", constrained),
        ("/v1/completions", text),
        ("/v1/messages", anthropic(true)),
        ("/v1/messages", anthropic(false)),
        ("/api/chat", ollama(true)),
        ("/api/chat", ollama(false)),
        ("/v1/responses", responses(true)),
        ("/v1/responses", responses(false)),
    ]
}

/// Returns the stable parts of all events of an answer.
fn answer(server: &Server, (path, body): &Request) -> Vec<Value> {
    let mut body = body.clone();
    body["model"] = json!("tiny");
    let text = server.exchange(path, &body.to_string());
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let events: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).map(stable).collect();
    assert!(!events.is_empty() && !text.contains("\"error\":{"), "{path}: {text}");
    events
}

/// Runs all requests at once, and `disturb` once they run.
fn answers(deadly: &Deadly, requests: &[Request], disturb: impl FnOnce()) -> Vec<Vec<Value>> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            requests.iter().map(|request| scope.spawn(|| answer(&deadly.server, request))).collect();
        deadly.wait_until("requests run", || deadly.server.figure("mlx_requests_running") >= 6);
        disturb();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    })
}

#[test]
fn no_answer_shows_the_death_of_an_engine() {
    let deadly = Deadly::start(SERVER, &["--exact", "--prefix-cache", "0"]);
    let requests = requests();
    let expected = answers(&deadly, &requests, || {});
    // Other systems do not enforce a limit on the address space.
    let memory = possible(has_memory_limits(), "/proc").then_some("memory");
    let faults = ["abort", "exit", "garbage", "wedge"].into_iter().chain(memory);
    let disturbances = ["KILL", "ABRT", "STOP"].into_iter().chain(faults);
    for (round, kind) in (1..).zip(disturbances) {
        let disturb = || {
            if kind.starts_with(char::is_uppercase) { deadly.signal(kind) } else { deadly.fault(kind) }
        };
        let disturbed = answers(&deadly, &requests, disturb);
        for ((request, expected), disturbed) in requests.iter().zip(&expected).zip(&disturbed) {
            assert_eq!(disturbed, expected, "{kind}: {request:?}\n{}", deadly.server.log());
        }
        assert_eq!(deadly.restarts(), round, "{kind}: {}", deadly.server.log());
        assert_eq!(deadly.server.get("/ready").status, 200);
    }
    let log = deadly.server.log();
    for cause in
        ["ended by signal 9", "signal 6", "exited with status 3", "a message is invalid", "no progress for"]
    {
        assert!(log.contains(cause) || cause == "a message is invalid", "{cause} is missing: {log}");
    }
    assert!(deadly.server.figure("mlx_requests_resumed_total") > 0);
}

#[test]
fn a_request_that_kills_three_engines_fails_and_others_continue() {
    let deadly = Deadly::start(SERVER, &[]);
    let request = json!({"model": "tiny", "prompt": "The waves", "max_tokens": 5});
    std::fs::write(&deadly.fault, "abort 3").expect("it can be written");
    // Each child dies before the first token. The third one runs only one of the requests.
    let mut replies = std::thread::scope(|scope| {
        let post = || deadly.server.post("/v1/completions", &request);
        let clients = [scope.spawn(post), scope.spawn(post)];
        clients.map(|client| client.join().expect("a reply"))
    });
    replies.sort_by_key(|reply| reply.status);
    let message = replies[1].body["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(replies.each_ref().map(|reply| reply.status), [200, 500], "{message}");
    assert!(
        message.contains("died 3 times without a token in between while it ran this request"),
        "{message}"
    );
    assert_eq!(deadly.server.post("/v1/completions", &request).status, 200);
    assert_eq!(deadly.restarts(), 3);
}

#[test]
fn a_child_ends_with_its_server_or_its_model() {
    let request = json!({"model": "tiny", "prompt": "The waves", "max_tokens": 5});
    let deadly = Deadly::start(SERVER, &["--idle-timeout", "0.5"]);
    deadly.wait_until("the model is unloaded", || deadly.server.children().is_empty());
    assert_eq!(deadly.server.post("/v1/completions", &request).status, 200);
    let mut deadly = Deadly::start(SERVER, &[]);
    let orphan = deadly.child();
    deadly.signal("TERM");
    assert_eq!(deadly.server.post("/v1/completions", &request).status, 200);
    assert_eq!((deadly.restarts(), deadly.child()), (0, orphan));
    deadly.server.signal("KILL");
    deadly.server.wait();
    wait_until(|| !exists(orphan), || "the child outlives its server".to_owned());
}

#[test]
fn a_model_that_cannot_be_loaded_again_ends_its_requests_with_the_reason() {
    let deadly = Deadly::start(SERVER, &[]);
    let long = json!({"model": "tiny", "prompt": "The waves", "max_tokens": 5000, "ignore_eos": true});
    std::thread::scope(|scope| {
        let running = scope.spawn(|| deadly.server.post("/v1/completions", &long));
        deadly.wait_until("it runs", || deadly.server.figure("mlx_requests_running") == 1);
        std::fs::remove_file(deadly.model.path().join("config.json")).expect("it exists");
        deadly.signal("KILL");
        let reply = running.join().expect("a reply");
        assert_eq!(reply.status, 500);
        assert!(
            reply.body["error"]["message"]
                .to_string()
                .contains("cannot be loaded again: the engine has stopped: the model's files have changed"),
            "{}",
            reply.body
        );
    });
    let reply = deadly.server.post("/v1/completions", &long);
    assert_eq!((reply.status, &reply.body["error"]["code"]), (503, &json!("model_not_loaded")));
}

/// Returns checkpoints that cannot be loaded, or only with other settings.
fn broken() -> Vec<TempDir> {
    let damage = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let copy = model_copy("llama-f32");
        let path = copy.path().join(file);
        std::fs::write(&path, change(std::fs::read(&path).expect("a file"))).expect("it can be written");
        copy
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() / 2);
        bytes
    };
    let set = |field: &'static str, value: u64| {
        move |bytes: Vec<u8>| {
            let mut config: Value = serde_json::from_slice(&bytes).expect("json");
            config[field] = value.into();
            config.to_string().into_bytes()
        }
    };
    vec![
        damage("model.safetensors", &cut),
        damage("tokenizer.json", &cut),
        damage("config.json", &set("num_hidden_layers", 90)),
        damage("config.json", &set("hidden_size", 128)),
        damage("config.json", &set("vocab_size", 7)),
    ]
}

#[test]
fn a_model_that_cannot_be_loaded_is_reported_as_in_one_process() {
    let folders = broken();
    let models =
        folders.iter().enumerate().map(|(index, it)| format!("broken{index}={}", it.path().display()));
    let models: Vec<String> = models.flat_map(|model| ["-m".to_owned(), model]).collect();
    let both: [&[&str]; 2] = [&[], &["--in-process"]];
    let [apart, within] = both.map(|way| {
        let models: Vec<&str> = models.iter().map(String::as_str).chain(way.iter().copied()).collect();
        let server = Server::start_on(&[SERVER], &model_folder("llama-f32"), &models);
        let ask = |index| {
            let request = json!({"model": format!("broken{index}"), "prompt": "a", "max_tokens": 1});
            let reply = server.post("/v1/completions", &request);
            (reply.status, reply.body["error"].to_string())
        };
        (0..folders.len()).map(ask).collect::<Vec<_>>()
    });
    assert_eq!(apart, within);
    assert!(apart.iter().all(|(status, _)| *status == 503), "{apart:?}");
    // A preloaded model ends the server.
    for folder in &folders {
        let [apart, within] = both.map(|way| {
            let model = format!("tiny={}", folder.path().display());
            let mut command = Command::new(SERVER);
            command.args(["--port", "0", "--preload", "-m", &model]).args(way);
            let output = piped(command, "");
            let log = String::from_utf8(output.stderr).expect("text");
            (output.status.code(), log.lines().last().unwrap_or_default().to_owned())
        });
        assert_eq!(apart, within);
        assert!(apart.0 == Some(1) && apart.1.starts_with("error: --preload: the model "), "{apart:?}");
    }
}

#[test]
fn a_child_of_another_version_says_so() {
    let (mut own, other) = UnixStream::pair().expect("a pair");
    let mut command = Command::new(SERVER);
    // The settings are those of the server, so a child does not read them.
    command.arg("engine").env("MLX_CONFIG", "/no/such/file").stdin(Stdio::from(OwnedFd::from(other)));
    let mut child = command.spawn().expect("it starts");
    drop(command);
    // A frame: its length, then a text of five bytes in MessagePack.
    own.write_all(b"\x06\0\0\0\xa50.0.0").expect("it is read");
    let mut reply = Vec::new();
    own.read_to_end(&mut reply).expect("a reply");
    assert!(String::from_utf8_lossy(&reply).contains("the program was replaced"), "{reply:?}");
    assert!(child.wait().expect("it ends").success());
}
