//! The program, the server (streamed or not) and the library give the same tokens and log probabilities.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_core::engine::{Engine, EngineOptions, RequestOptions, TokenOutput};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::model_folder;
use mlx_tests::server::Server;
use serde_json::{Map, Value, json};

const PROMPT: [u32; 6] = [1, 9, 30, 9, 30, 41];

/// Ids, and log probabilities as bits.
type Drawn = Vec<(u64, u32)>;

/// Returns the same requests for the library and for the API; flags are the API's names with dashes.
fn requests() -> Vec<(SamplingOptions, Value)> {
    let seed = Some(77);
    vec![
        (
            SamplingOptions { temperature: Some(0.0), seed, ..SamplingOptions::default() },
            json!({"temperature": 0}),
        ),
        (
            SamplingOptions {
                temperature: Some(0.8),
                top_k: Some(40),
                top_p: Some(0.9),
                min_p: Some(0.02),
                typical_p: Some(0.95),
                seed,
                ..SamplingOptions::default()
            },
            json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95}),
        ),
        (
            SamplingOptions {
                // The program and the server have other defaults.
                temperature: Some(1.0),
                min_p: Some(0.0),
                repetition_penalty: Some(1.3),
                frequency_penalty: Some(0.5),
                presence_penalty: Some(0.25),
                penalty_last_n: Some(24),
                dry_multiplier: Some(0.8),
                dry_allowed_length: Some(1),
                xtc_probability: Some(0.5),
                xtc_threshold: Some(0.05),
                seed,
                ..SamplingOptions::default()
            },
            json!({"temperature": 1, "min_p": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25,
                "penalty_last_n": 24, "dry_multiplier": 0.8, "dry_allowed_length": 1,
                "xtc_probability": 0.5, "xtc_threshold": 0.05}),
        ),
    ]
}

const SERVE: [&str; 2] = [env!("CARGO_BIN_EXE_mlx"), "serve"];

#[test]
fn program_server_and_library_give_the_same_tokens() {
    // Without --exact, reused prefixes may change the last bits.
    let server = Server::start(&SERVE, &["--prefix-cache", "0"]);
    let _turn = mlx_tests::device();
    let options = EngineOptions { prefix_cache: Some(0), ..EngineOptions::default() };
    let engine = Engine::start(&model_folder("llama-f32"), &options, |_, _| {}).expect("it loads");
    let asked = asked(&server, &engine);
    for ((_, words), (_, _, library)) in requests().iter().zip(&asked) {
        assert_eq!(&by_program(words.as_object().expect("an object")), library, "mlx generate");
    }
    ask(&server, &asked);
}

#[test]
fn the_tokens_are_the_same_beside_other_clients() {
    // --exact makes the bits of a row independent of other rows.
    let server = Server::start(&SERVE, &["--exact"]);
    let _turn = mlx_tests::device();
    let options = EngineOptions { exact: true, ..EngineOptions::default() };
    let engine = Engine::start(&model_folder("llama-f32"), &options, |_, _| {}).expect("it loads");
    let asked = asked(&server, &engine);
    with_other_clients(&server, 8, || ask(&server, &asked));
}

/// A path, a request, and the result of the library.
type Asked = (&'static str, Value, (String, Drawn));

/// Returns every request as a completion and as a chat.
fn asked(server: &Server, engine: &Engine) -> Vec<Asked> {
    let messages = json!([{"role": "user", "content": "The waves"}]);
    let rendered = server.post("/v1/chat/render", &json!({"messages": messages})).body;
    let rendered: Vec<u32> =
        rendered["tokens"].as_array().expect("a list").iter().map(|it| id(it) as u32).collect();
    let (mut completions, mut chats) = (Vec::new(), Vec::new());
    for (sampling, mut request) in requests() {
        let options = RequestOptions {
            sampling,
            max_tokens: Some(40),
            ignore_eos: true,
            logprobs: Some(0),
            ..RequestOptions::default()
        };
        for (key, value) in [("seed", json!(77)), ("max_tokens", json!(40))] {
            request[key] = value;
        }
        request["ignore_eos"] = json!(true);
        request["return_token_ids"] = json!(true);
        let mut completion = request.clone();
        (completion["prompt"], completion["logprobs"]) = (json!(PROMPT), json!(0));
        completions.push(("/v1/completions", completion, by_library(engine, &PROMPT, &options)));
        (request["messages"], request["logprobs"]) = (messages.clone(), json!(true));
        chats.push(("/v1/chat/completions", request, by_library(engine, &rendered, &options)));
    }
    completions.append(&mut chats);
    completions
}

/// Sends the requests to the server, not streamed and streamed.
fn ask(server: &Server, asked: &[Asked]) {
    for (path, request, library) in asked {
        let mut request = request.clone();
        assert_eq!(&by_server(&[server.post(path, &request).body]), library, "{path}");
        request["stream"] = json!(true);
        assert_eq!(&by_server(&server.stream(path, &request)), library, "{path}, streamed");
    }
}

/// Runs `work` while `clients` other clients send requests.
fn with_other_clients(server: &Server, clients: u64, work: impl FnOnce()) {
    /// Stops the other clients even if the work panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _end = End(&ended);
        for client in 0..clients {
            let ended = &ended;
            threads.spawn(move || {
                for round in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let text = "waves and keepers ".repeat((client + round) as usize % 5 + 1);
                    let request = json!({"prompt": text, "max_tokens": 30 + 9 * client, "seed": round,
                        "ignore_eos": true, "stream": client % 2 == 0});
                    if client % 2 == 0 {
                        server.stream("/v1/completions", &request);
                    } else {
                        assert_eq!(server.post("/v1/completions", &request).status, 200);
                    }
                }
            });
        }
        // All clients have started and continue during the work.
        while server.figure("mlx_completion_tokens_total") < 10 {
            std::thread::yield_now();
        }
        work();
    });
}

/// Returns the result of the library.
fn by_library(engine: &Engine, prompt: &[u32], options: &RequestOptions) -> (String, Drawn) {
    let outcome = mlx_tests::run(engine, prompt, options);
    let token = |token: &TokenOutput| {
        (u64::from(token.id), token.logprob.as_ref().expect("asked for").logprob.to_bits())
    };
    let drawn: Drawn = outcome.tokens.iter().map(token).collect();
    assert_eq!(drawn.len(), 40);
    (outcome.text, drawn)
}

/// Returns the result of `mlx generate`.
fn by_program(words: &Map<String, Value>) -> (String, Drawn) {
    let folder = model_folder("llama-f32");
    let prompt = PROMPT.map(|id| id.to_string()).join(",");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.arg("generate").arg("-m").arg(folder).args(["--prompt-ids", &prompt, "--seed", "77"]);
    command.args(["--max-tokens", "40", "--ignore-eos", "--logprobs", "0", "--json"]);
    for (word, value) in words {
        command.arg(format!("--{}={value}", word.replace('_', "-")));
    }
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one json object");
    let tokens = object["tokens"].as_array().expect("a list");
    let drawn = tokens.iter().map(|token| (id(&token["id"]), bits(&token["logprob"]))).collect();
    (object["text"].as_str().expect("text").to_owned(), drawn)
}

/// Returns the result of the server, from one response or from chunks.
fn by_server(answers: &[Value]) -> (String, Drawn) {
    let (mut text, mut drawn) = (String::new(), Vec::new());
    for choice in answers.iter().filter_map(|answer| answer["choices"].get(0)) {
        let fields = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        text.extend(fields.iter().find_map(|it| it.as_str()));
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        let of_chat = choice["logprobs"]["content"].as_array().into_iter().flatten().map(|it| &it["logprob"]);
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().chain(of_chat);
        drawn.extend(ids.zip(logprobs).map(|(token, logprob)| (id(token), bits(logprob))));
    }
    (text, drawn)
}

fn id(value: &Value) -> u64 {
    value.as_u64().expect("an id")
}

/// A log-probability survives JSON: its decimal form parses to the same f32.
fn bits(value: &Value) -> u32 {
    (value.as_f64().expect("a number") as f32).to_bits()
}
