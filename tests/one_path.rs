//! One path: the program, the server, streamed and not, and the library give the same tokens and log-probabilities.

use std::process::Command;

use mlx_core::engine::RequestOptions;
use mlx_core::sampling::{DryOptions, PenaltyOptions, SamplingOptions, XtcOptions};
use mlx_tests::model_folder;
use mlx_tests::server::{Server, events};
use serde_json::{Map, Value, json};

const PROMPT: [u32; 6] = [1, 9, 30, 9, 30, 41];

/// Ids and log-probabilities, as bits: the same means the same.
type Drawn = Vec<(u64, u32)>;

/// A request in the words of the library and of the API; the flags are those words with dashes.
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
                penalties: PenaltyOptions {
                    repetition: Some(1.3),
                    frequency: Some(0.5),
                    presence: Some(0.25),
                    window: Some(24),
                },
                dry: DryOptions { multiplier: Some(0.8), allowed_length: Some(1), ..DryOptions::default() },
                xtc: XtcOptions { probability: Some(0.5), threshold: Some(0.05) },
                seed,
                ..SamplingOptions::default()
            },
            json!({"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25,
                "penalty_last_n": 24, "dry_multiplier": 0.8, "dry_allowed_length": 1,
                "xtc_probability": 0.5, "xtc_threshold": 0.05}),
        ),
    ]
}

#[test]
fn every_way_to_ask_gives_the_same_tokens() {
    let server = Server::start(&[env!("CARGO_BIN_EXE_mlx"), "serve"], &[]);
    let _turn = mlx_tests::device();
    let engine = mlx_tests::engine("llama-f32");
    for (sampling, words) in requests() {
        let options = RequestOptions {
            sampling,
            max_tokens: Some(40),
            ignore_eos: true,
            logprobs: Some(0),
            ..RequestOptions::default()
        };
        let outcome = mlx_tests::run(&engine, &PROMPT, &options);
        let token = |token: &mlx_core::engine::TokenOutput| {
            (u64::from(token.id), token.logprob.as_ref().expect("asked for").logprob.to_bits())
        };
        let library: Drawn = outcome.tokens.iter().map(token).collect();
        assert_eq!(library.len(), 40);
        let (text, drawn) = by_program(words.as_object().expect("an object"));
        assert_eq!((&text, &drawn), (&outcome.text, &library), "mlx generate");
        let mut request = words.clone();
        for (key, value) in [
            ("prompt", json!(PROMPT)),
            ("seed", json!(77)),
            ("max_tokens", json!(40)),
            ("logprobs", json!(0)),
        ] {
            request[key] = value;
        }
        request["ignore_eos"] = json!(true);
        request["return_token_ids"] = json!(true);
        let answer = server.post("/v1/completions", &request).body;
        assert_eq!(answer["choices"][0]["text"], json!(outcome.text), "http: {answer}");
        assert_eq!(by_server(&[answer]), library, "http");
        request["stream"] = json!(true);
        let chunks = server.stream("/v1/completions", &request);
        assert_eq!(events(&chunks), outcome.text, "http, streamed");
        assert_eq!(by_server(&chunks), library, "http, streamed");
    }
}

/// What `mlx generate` gives.
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

/// What a whole answer or its chunks give.
fn by_server(answers: &[Value]) -> Drawn {
    let mut drawn = Vec::new();
    for choice in answers.iter().filter_map(|answer| answer["choices"].get(0)) {
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten();
        drawn.extend(ids.zip(logprobs).map(|(token, logprob)| (id(token), bits(logprob))));
    }
    drawn
}

fn id(value: &Value) -> u64 {
    value.as_u64().expect("an id")
}

/// A log-probability goes through JSON as a decimal number, which gives the same f32 again.
fn bits(value: &Value) -> u32 {
    (value.as_f64().expect("a number") as f32).to_bits()
}
