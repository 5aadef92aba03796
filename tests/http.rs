//! The server as a user runs it, over HTTP.

mod http_chats;
mod http_keys;
mod http_log;
mod http_models;
mod http_profiles;
mod http_stay;
mod http_thoughts;
mod http_tls;
mod http_traces;

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use mlx_core::engine::{RequestOptions, Task};
use mlx_core::sentence_transformers::Pooling;
use mlx_tests::server::{Server, events};
use mlx_tests::{device, exact_level, golden, model_folder};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_streamed_answer_equals_the_complete_answer() {
    // The batches differ between the two, so only exact requests have bit-identical log probabilities.
    let server = Server::start(&SERVER, &["--exact"]);
    for (path, mut request) in [
        ("/v1/chat/completions", json!({"messages": user("The waves"), "logprobs": true, "top_logprobs": 3})),
        ("/v1/completions", json!({"prompt": ["The waves", "The keeper"], "logprobs": 3, "echo": true})),
    ] {
        for (key, value) in
            [("seed", json!(11)), ("n", json!(2)), ("max_tokens", json!(12)), ("ignore_eos", json!(true))]
        {
            request[key] = value;
        }
        request["return_token_ids"] = json!(true);
        let complete = server.post(path, &request);
        assert_eq!((complete.status, complete.body["seed"].as_u64()), (200, Some(11)), "{}", complete.body);
        assert!(["bit-exact", "sampling-exact"].contains(&complete.header("x-exactness")));
        assert_eq!(complete.header("x-seed"), "11");
        request["stream"] = json!(true);
        request["stream_options"] = json!({"include_usage": true});
        let chunks = server.stream(path, &request);
        assert_eq!(counted(&chunks.last().expect("a chunk")["usage"]), counted(&complete.body["usage"]));
        for choice in complete.body["choices"].as_array().expect("a list") {
            assert_eq!(streamed(&chunks, &choice["index"]), content_of(choice), "{path}");
        }
    }
}

#[test]
fn an_exact_request_says_so_and_others_do_not() {
    let of_device = {
        let _turn = device();
        exact_level(&model_folder("llama-f32")).as_str()
    };
    let server = Server::start(&SERVER, &[]);
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let level = |exact: Value| {
            let mut request = json!({"max_tokens": 4, "temperature": 0});
            if path.ends_with("chat/completions") {
                request["messages"] = user("The waves");
            } else {
                request["prompt"] = json!("The waves");
            }
            if !exact.is_null() {
                request["exact"] = exact;
            }
            let answer = server.post(path, &request);
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.header("x-exactness").to_owned()
        };
        assert_eq!(level(Value::Null), "sampling-exact");
        assert_eq!(level(json!(true)), of_device);
        assert_eq!(level(json!(false)), "sampling-exact");
    }
    let wrong = server.post("/v1/completions", &json!({"prompt": "The waves", "speculate": "often"}));
    assert_eq!((wrong.status, wrong.body["error"]["param"].as_str()), (400, Some("speculate")));
    let wrong = server.post("/v1/completions", &json!({"prompt": "The waves", "exact": "yes"}));
    assert_eq!((wrong.status, wrong.body["error"]["param"].as_str()), (400, Some("exact")));
}

/// Returns the usage without cache counts, which depend on earlier requests.
fn counted(usage: &Value) -> Value {
    let mut usage = usage.clone();
    assert!(usage["prompt_tokens_details"].take()["cached_tokens"].is_u64(), "{usage}");
    usage
}

/// Returns text, ids, log probabilities and finish reason of a choice.
fn content_of(choice: &Value) -> Value {
    let text = choice["message"]["content"].as_str().or_else(|| choice["text"].as_str()).expect("text");
    let logprobs =
        choice["logprobs"]["content"].as_array().or_else(|| choice["logprobs"]["token_logprobs"].as_array());
    json!([text, choice["token_ids"], logprobs, choice["finish_reason"], choice["logprobs"]["text_offset"]])
}

/// Assembles the same content from chunks.
fn streamed(chunks: &[Value], index: &Value) -> Value {
    let (mut text, mut ids, mut logprobs, mut end) = (String::new(), Vec::new(), Vec::new(), Value::Null);
    let mut offsets = Vec::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list")) {
        if choice["index"] != *index {
            continue;
        }
        let part = choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str());
        text.push_str(part.unwrap_or_default());
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        let lists = &choice["logprobs"];
        let list = lists["content"].as_array().or_else(|| lists["token_logprobs"].as_array());
        logprobs.extend(list.into_iter().flatten().cloned());
        offsets.extend(lists["text_offset"].as_array().into_iter().flatten().cloned());
        if !choice["finish_reason"].is_null() {
            end = choice["finish_reason"].clone();
            assert!(
                part.unwrap_or_default().is_empty(),
                "the finish reason must be in a separate chunk: {choice}"
            );
        }
    }
    let offsets = if offsets.is_empty() { Value::Null } else { json!(offsets) };
    json!([text, ids, logprobs, end, offsets])
}

#[test]
fn greedy_text_equals_the_reference_for_every_form_of_prompt() {
    let server = Server::start(&SERVER, &[]);
    let cases = golden::cases("llama-f32").cases;
    let prompts: Vec<_> = cases.iter().map(|case| &case.prompt_ids).collect();
    let request = json!({"prompt": prompts, "temperature": 0, "max_tokens": 32, "ignore_eos": true,
        "logprobs": 5, "return_token_ids": true});
    let answer = server.post("/v1/completions", &request).body;
    for (choice, case) in answer["choices"].as_array().expect("a list").iter().zip(&cases) {
        assert_eq!(choice["token_ids"], json!(case.tokens));
        let first = choice["logprobs"]["token_logprobs"][0].as_f64().expect("a number");
        assert!((first - f64::from(case.logprobs[0])).abs() < 1e-3);
    }
    let ids: usize = cases.iter().map(|case| case.prompt_ids.len()).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], json!(ids));
}

#[test]
fn the_first_of_several_choices_equals_a_single_choice() {
    let server = Server::start(&SERVER, &[]);
    let ask = |n: u32, seed: Option<u64>| {
        let request =
            json!({"prompt": "The waves", "n": n, "seed": seed, "max_tokens": 16, "ignore_eos": true});
        server.post("/v1/completions", &request).body
    };
    let many = ask(3, Some(5));
    assert_eq!(ask(1, Some(5))["choices"][0]["text"], many["choices"][0]["text"]);
    assert_ne!(many["choices"][1]["text"], many["choices"][0]["text"]);
    let drawn = ask(2, None);
    assert_eq!(
        ask(2, drawn["seed"].as_u64())["choices"],
        drawn["choices"],
        "the reported seed repeats the answer"
    );
}

#[test]
fn stop_strings_stop_and_prompts_can_be_scored() {
    let server = Server::start(&SERVER, &[]);
    let mut request = json!({"prompt": "The keeper", "temperature": 0, "max_tokens": 24, "ignore_eos": true});
    let all = server.post("/v1/completions", &request).body["choices"][0]["text"]
        .as_str()
        .expect("text")
        .to_owned();
    let letters: Vec<char> = all.chars().collect();
    let stop: String = letters[5..8].iter().collect();
    request["stop"] = json!(stop);
    let stopped = server.post("/v1/completions", &request).body;
    assert_eq!(stopped["choices"][0]["text"], json!(all.split(&stop).next()));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let score = json!({"prompt": "The keeper", "max_tokens": 0, "echo": true, "logprobs": 1});
    let scored = server.post("/v1/completions", &score).body;
    let logprobs = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    assert_eq!((scored["choices"][0]["text"].as_str(), &logprobs[0]), (Some("The keeper"), &Value::Null));
    assert_eq!(json!(logprobs.len()), scored["usage"]["prompt_tokens"]);
}

#[test]
fn embeddings_are_the_normalized_vectors_of_the_engine() {
    let server = Server::start(&SERVER, &[]);
    let prompt = [1, 9, 30, 9, 30, 41];
    let vector = |extra: Value| -> Vec<f32> {
        let mut request = json!({"input": prompt});
        request.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let answer = server.post("/v1/embeddings", &request);
        assert_eq!(answer.body["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}), "{}", answer.body);
        let numbers = answer.body["data"][0]["embedding"].as_array().expect("a list");
        numbers.iter().map(|it| it.as_f64().expect("a number") as f32).collect()
    };
    let scaled = |raw: &[f32]| -> Vec<f32> {
        let length = raw.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
        raw.iter().map(|it| (f64::from(*it) / length) as f32).collect()
    };
    let _turn = mlx_tests::device();
    let engine = mlx_tests::engine("llama-f32");
    for (name, pooling) in [("mean", Pooling::Mean), ("last", Pooling::Last)] {
        let options = RequestOptions { task: Task::Embed(pooling.into()), ..RequestOptions::default() };
        let raw = mlx_tests::run(&engine, &prompt, &options).embedding.expect("asked for");
        assert_eq!(vector(json!({"pooling": name})), scaled(&raw), "{name}");
        assert_eq!(vector(json!({"pooling": name, "dimensions": 5})), scaled(&raw[..5]), "{name}");
    }
    let only_read = RequestOptions { task: Task::Embed(Pooling::Mean.into()), ..RequestOptions::default() };
    assert!(mlx_tests::run(&engine, &[7; 200], &only_read).embedding.is_some());
    assert_eq!(engine.stats().prefixes, 0, "an embedding request must not leave a prefix");
    assert_eq!(vector(json!({})), vector(json!({"pooling": "mean"})));
    let both = server.post("/v1/embeddings", &json!({"input": ["The waves", "The keeper"]})).body;
    let alone = server.post("/v1/embeddings", &json!({"input": "The keeper"})).body;
    assert_eq!(both["data"][1]["embedding"], alone["data"][0]["embedding"]);
    assert_eq!(both["data"][1]["index"], 1);
    let coded = server.post("/v1/embeddings", &json!({"input": "a", "encoding_format": "base64"})).body;
    assert_eq!(coded["data"][0]["embedding"].as_str().expect("text").len(), (32 * 4_usize).div_ceil(3) * 4);
    for (request, param) in [
        (json!({"input": "a", "dimensions": 33}), "dimensions"),
        (json!({"input": "waves ".repeat(400), "truncate": false}), "input"),
        (json!({"input": ["a", []]}), "input[1]"),
    ] {
        let refused = server.post("/v1/embeddings", &request);
        assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn text_endpoints_agree_with_generation() {
    let server = Server::start(&SERVER, &[]);
    let tokens = server.post("/tokenize", &json!({"content": "The keeper", "with_pieces": true})).body;
    let pieces: String = tokens["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["piece"].as_str().expect("text"))
        .collect();
    assert_eq!(pieces, "The keeper");
    let ids: Vec<_> =
        tokens["tokens"].as_array().expect("a list").iter().map(|it| it["id"].clone()).collect();
    assert_eq!(server.post("/detokenize", &json!({"tokens": ids})).body["content"], "The keeper");
    let rendered = server.post("/v1/chat/render", &json!({"messages": user("The waves")})).body;
    let chat = json!({"messages": user("The waves"), "max_tokens": 1, "return_token_ids": true});
    assert_eq!(server.post("/v1/chat/completions", &chat).body["prompt_token_ids"], rendered["tokens"]);
    let too_long = server.post("/v1/completions", &json!({"prompt": "waves ".repeat(400)}));
    assert_eq!((too_long.status, &too_long.body["error"]["param"]), (400, &json!("prompt")));
    // The error names a field of the chat request.
    let far_too_long = json!({"messages": user(&"waves ".repeat(100_000))});
    let refused = server.post("/v1/chat/completions", &far_too_long);
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("messages")));
    let outside = server.post("/v1/completions", &json!({"prompt": "a", "logit_bias": {"99999": 1}}));
    assert_eq!((outside.status, &outside.body["error"]["param"]), (400, &json!("logit_bias")));
}

#[test]
fn a_disconnected_client_ends_its_generation() {
    let server = Server::start_slow(&SERVER, &[]);
    let request = json!({"prompt": "The waves", "max_tokens": 8000, "ignore_eos": true, "stream": true});
    for streamed in [true, false] {
        let mut request = request.clone();
        request["stream"] = json!(streamed);
        let mut connection = server.connect("/v1/completions", &request);
        if streamed {
            let mut some = [0; 64];
            connection.read_exact(&mut some).expect("it begins");
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(connection);
    }
    let begin = Instant::now();
    while !server.metrics().contains("mlx_generations_total{reason=\"abandoned\"} 2") {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", server.metrics());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn a_signal_lets_short_answers_finish_and_aborts_long_ones() {
    for (patience, broken) in [("30", false), ("0", true)] {
        let mut server = Server::start_slow(&SERVER, &["--shutdown-timeout", patience]);
        let length = if broken { 4000 } else { 20 };
        let request =
            json!({"prompt": "The waves", "max_tokens": length, "ignore_eos": true, "stream": true});
        let connection = server.connect("/v1/completions", &request);
        let mut reader = BufReader::new(connection);
        let mut line = String::new();
        while !line.starts_with("data:") {
            line.clear();
            assert_ne!(reader.read_line(&mut line).expect("it begins"), 0);
        }
        server.terminate();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the stream ends by itself");
        assert_eq!(rest.contains("shutting_down"), broken, "{rest}");
        assert_eq!(rest.contains("\"finish_reason\":\"length\""), !broken, "{rest}");
        assert!(rest.contains("data: [DONE]"), "{rest}");
        assert!(server.wait().success());
    }
}

#[test]
fn concurrent_requests_are_answered() {
    let other = format!("other={}", mlx_tests::model_folder("llama-tied-f32").display());
    let server = Server::start(&SERVER, &["-m", &other]);
    let ask = |seed: u64| {
        let model = if seed.is_multiple_of(2) { "tiny" } else { "other" };
        let request =
            json!({"model": model, "prompt": "The waves", "max_tokens": 8, "seed": seed, "stream": true});
        events(&server.stream("/v1/completions", &request))
    };
    let alone: Vec<_> = (0..4).map(ask).collect();
    std::thread::scope(|threads| {
        let tasks: Vec<_> = (0..64_u64).map(|it| threads.spawn(move || (it % 4, ask(it % 4)))).collect();
        for task in tasks {
            let (seed, text) = task.join().expect("it is answered");
            assert_eq!(text, alone[seed as usize]);
        }
    });
}

#[test]
fn the_log_names_the_user_but_no_prompt_or_answer() {
    let server = Server::start(&SERVER, &[]);
    let secret = "the keeper is called Ann";
    server.post("/v1/completions", &json!({"prompt": secret, "max_tokens": 1, "user": "someone"}));
    server.post("/v1/chat/completions", &json!({"messages": user(secret), "max_tokens": 1}));
    server.post("/v1/completions", &json!({"prompt": secret, "frobnicate": secret}));
    let begin = Instant::now();
    while server.log().matches("\"message\":\"request\"").count() < 3 {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = server.log();
    assert!(log.contains("\"user\":\"someone\"") && log.contains("\"ignored\":\"frobnicate\""), "{log}");
    assert!(!log.contains("Ann"), "{log}");
}

/// The log line of an answer has the id of its request, for every endpoint.
#[test]
fn answers_in_the_log_have_the_ids_of_their_requests() {
    let server = Server::start(&SERVER, &[]);
    let chat = json!({"messages": user("a"), "max_tokens": 2});
    let requests = [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 2, "n": 2})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 2, "stream": true})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/messages", chat.clone()),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 2})),
        ("/api/chat", json!({"messages": user("a"), "options": {"num_predict": 2}})),
        ("/api/embeddings", json!({"prompt": "a"})),
    ];
    for (place, (path, request)) in requests.iter().enumerate() {
        let id = format!("mine-{place}");
        assert_eq!(server.send("POST", path, &[("x-request-id", &id)], request).status, 200, "{path}");
    }
    // A separate thread reads the log.
    let begin = Instant::now();
    while server.log().matches("\"message\":\"request\"").count() < requests.len()
        || server.log().matches("\"message\":\"answer\"").count() <= requests.len()
    {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let answers: Vec<Value> = lines.filter(|line| line["message"] == "answer").collect();
    let of = |id: &str| answers.iter().filter(|line| line["id"] == id).count();
    let counts: Vec<usize> = (0..requests.len()).map(|place| of(&format!("mine-{place}"))).collect();
    assert_eq!(counts, [1, 2, 1, 1, 1, 1, 1, 1], "{log}");
}
