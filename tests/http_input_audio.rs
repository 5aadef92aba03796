//! Audio in chats over HTTP: the model hears what transformers' does, and unusable audio is an error with a reason.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlx_tests::deadly::Deadly;
use mlx_tests::input_audio::{file, folder, golden};
use mlx_tests::server::Server;
use mlx_tests::{Dice, copied, model_folder};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const MODEL: &str = "gemma4-f32";

fn part(bytes: &[u8]) -> Value {
    json!({"type": "input_audio", "input_audio": {"data": STANDARD.encode(bytes), "format": "wav"}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn chat(content: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 12})
}

#[test]
fn chat_completions_hear_what_transformers_hears() {
    let golden = golden(MODEL);
    let server = Server::start_on(&SERVER, &folder(MODEL), &[]);
    for case in &golden.cases {
        let (mut messages, mut clips) = (case["messages"].clone(), 0);
        for message in messages.as_array_mut().expect("messages") {
            for given in message["content"].as_array_mut().into_iter().flatten() {
                if given["type"] == "audio" {
                    *given = part(&file(&golden.file_name(&given["audio"])));
                    clips += 1;
                } else if given["type"] == "image" {
                    let url = format!("data:image/png;base64,{}", STANDARD.encode(file("picture.png")));
                    *given = json!({"type": "image_url", "image_url": {"url": url}});
                }
            }
        }
        let tokens = case["tokens"].as_array().expect("tokens").len();
        let request = json!({
            "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true,
        });
        let answer = server.post("/v1/chat/completions", &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body["choices"][0]["token_ids"], case["tokens"]);
        let usage = &answer.body["usage"];
        assert_eq!(usage["prompt_tokens"], case["prompt_ids"].as_array().expect("ids").len());
        let heard = usage["prompt_tokens_details"]["audio_tokens"].as_u64();
        assert_eq!(heard.is_some(), clips > 0, "{usage}");
    }
}

#[test]
fn responses_hear_the_same_and_keep_the_audio() {
    let server = Server::start_on(&SERVER, &folder(MODEL), &[]);
    let clip = file("16000.wav");
    let answer = server.post("/v1/chat/completions", &chat(&json!([part(&clip), text("What is this?")])));
    let expected = &answer.body["choices"][0]["message"]["content"];
    let content = json!([part(&clip), {"type": "input_text", "text": "What is this?"}]);
    let request =
        json!({"input": [{"role": "user", "content": content}], "temperature": 0, "max_output_tokens": 12});
    let response = server.post("/v1/responses", &request);
    assert_eq!(&response.body["output"][0]["content"][0]["text"], expected, "{}", response.body);
    let more = json!({
        "previous_response_id": response.body["id"], "input": "And now?", "temperature": 0, "max_output_tokens": 4,
    });
    let more = server.post("/v1/responses", &more);
    assert_eq!(more.status, 200, "{}", more.body);
    assert!(more.body["usage"]["input_tokens"].as_u64() > response.body["usage"]["input_tokens"].as_u64());
    let shown = server.post("/api/show", &json!({"model": "tiny"}));
    assert!(shown.body["capabilities"].as_array().expect("a list").contains(&json!("audio")));
}

#[test]
fn a_model_without_an_audio_tower_refuses_by_name() {
    let server = Server::start_on(&SERVER, &model_folder("llama-f32"), &[]);
    let answer = server.post("/v1/chat/completions", &chat(&json!([part(&file("1000.wav")), text("?")])));
    assert_eq!((answer.status, &answer.body["error"]["param"]), (400, &json!("input_audio")));
    let message = answer.body["error"]["message"].as_str().expect("a message");
    assert!(message.contains("llama, which has no audio tower"), "{message}");
    let shown = server.post("/api/show", &json!({"model": "tiny"}));
    assert!(!shown.body["capabilities"].as_array().expect("a list").contains(&json!("audio")));
}

#[test]
fn unusable_audio_is_an_error_and_hurts_no_other_request() {
    let server = Server::start_on(&SERVER, &folder(MODEL), &[]);
    let whole = file("8480.wav");
    let good = chat(&json!([part(&whole), text("What is this?")]));
    let expected = server.post("/v1/chat/completions", &good);
    assert_eq!(expected.status, 200, "{}", expected.body);
    let mut dice = Dice::new(7);
    for round in 0..40 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(dice.below(whole.len() / 2)),
            1 => bytes = (0..dice.below(4000)).map(|_| dice.below(256) as u8).collect(),
            // The headers, not the samples, which may have any value.
            2 => (0..8).for_each(|_| bytes[dice.below(44)] = dice.below(256) as u8),
            _ => bytes = mlx_audio::wav::of_samples(&vec![0.1; 16_000 * (31 + dice.below(60))]),
        }
        let answer = server.post("/v1/chat/completions", &chat(&json!([part(&bytes), text("?")])));
        // Some headers can be changed without harm.
        let allowed: &[u16] = if round % 4 == 2 { &[200, 400] } else { &[400] };
        assert!(allowed.contains(&answer.status), "{round}: {}", answer.body);
        if answer.status == 400 {
            let param = answer.body["error"]["param"].as_str().expect("a field");
            assert!(param.contains("input_audio"), "{round}: {}", answer.body);
        }
    }
    let roles = json!({"messages": [{"role": "system", "content": [part(&whole)]}]});
    let refused = server.post("/v1/chat/completions", &roles);
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("messages[0].content")));
    let again = server.post("/v1/chat/completions", &good);
    assert_eq!(again.body["choices"], expected.body["choices"]);
}

/// The next engine hears the audio again.
#[test]
fn an_answer_about_audio_survives_the_death_of_its_engine() {
    let deadly = Deadly::start_on(SERVER[0], copied(&folder(MODEL)), &[]);
    let mut request = chat(&json!([part(&file("36960.wav")), text("What is this?")]));
    request["max_tokens"] = json!(300);
    request["ignore_eos"] = json!(true);
    let expected = deadly.server.post("/v1/chat/completions", &request);
    assert_eq!(expected.status, 200, "{}", expected.body);
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| deadly.server.post("/v1/chat/completions", &request));
        deadly.wait_until("it runs", || deadly.server.figure("mlx_requests_running") == 1);
        deadly.signal("KILL");
        answer.join().expect("an answer")
    });
    assert_eq!(answer.body["choices"], expected.body["choices"], "{}", deadly.server.log());
}
