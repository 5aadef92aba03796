//! Budgets of thought tokens in every protocol.

use mlx_tests::server::Server;
use mlx_tests::successors::endless_thinker;
use serde_json::{Value, json};

use super::{SERVER, user};

const CHAT: &str = "/v1/chat/completions";

/// Asks in a protocol. Returns the thought, the answer and the number of generated tokens.
fn asked(server: &Server, path: &str, more: &Value) -> (String, String, u64) {
    let mut request = match path {
        "/v1/responses" => json!({"input": "Go", "temperature": 0, "max_output_tokens": 40}),
        "/api/chat" => json!({"messages": user("Go"), "stream": false, "options": {"temperature": 0}}),
        _ => json!({"messages": user("Go"), "temperature": 0, "max_tokens": 40}),
    };
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let reply = server.post(path, &request);
    assert_eq!((reply.status, reply.find("x-ignored-fields")), (200, None), "{request}: {}", reply.body);
    let body = reply.body;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match path {
        "/v1/messages" => {
            let count = body["usage"]["output_tokens"].as_u64().expect("a number");
            let blocks = body["content"].as_array().expect("blocks");
            let joined = |field: &str| blocks.iter().map(|block| text(&block[field])).collect();
            (joined("thinking"), joined("text"), count)
        }
        "/v1/responses" => {
            let items = body["output"].as_array().expect("items");
            let of = |kind: &str| {
                let items = items.iter().filter(|item| item["type"] == kind);
                items.map(|item| text(&item["content"][0]["text"])).collect()
            };
            let count = body["usage"]["output_tokens"].as_u64().expect("a number");
            (of("reasoning"), of("message"), count)
        }
        _ => {
            let message = &body["choices"][0]["message"];
            let count = body["usage"]["completion_tokens"].as_u64().expect("a number");
            (text(&message["reasoning_content"]), text(&message["content"]), count)
        }
    }
}

#[test]
fn a_budget_closes_thoughts_in_every_protocol() {
    let model = endless_thinker();
    let server = Server::start_on(&SERVER, model.path(), &["--strict"]);
    let unlimited = asked(&server, CHAT, &json!({"thinking_budget": -1}));
    assert_eq!((unlimited.1.as_str(), unlimited.2), ("", 40), "the model thinks to the end");
    for budget in [0, 1, 3, 20] {
        // The thought, its marker, the answer and the end token.
        let expected = ("Hm ".repeat(budget).trim_end().to_owned(), "Yes.".to_owned(), budget as u64 + 3);
        for (path, fields) in [
            (CHAT, json!({"thinking_budget": budget})),
            (CHAT, json!({"thinking_budget_tokens": budget})),
            (CHAT, json!({"reasoning_budget_tokens": budget})),
            (CHAT, json!({"thinking_token_budget": budget})),
            (CHAT, json!({"reasoning": {"max_tokens": budget}})),
            ("/v1/messages", json!({"thinking": {"type": "enabled", "budget_tokens": budget}})),
            ("/v1/responses", json!({"reasoning": {"max_tokens": budget}})),
        ] {
            let (thought, answer, count) = asked(&server, path, &fields);
            let found = (thought.trim_end().to_owned(), answer, count);
            assert_eq!(found, expected, "{path} with {fields}");
        }
    }
    // A grammar holds for the answer after a thought that was closed.
    let grammar = json!({"thinking_budget": 2, "structured_outputs": {"regex": "Yes[.]"}});
    assert_eq!(asked(&server, CHAT, &grammar), ("Hm Hm".to_owned(), "Yes.".to_owned(), 5));
    let refused = server.post(CHAT, &json!({"messages": user("Go"), "thinking_budget": -5}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("thinking_budget")));
}

/// A client that shows progress reads it before the first token, and the reason of a prefix miss at the end.
#[test]
fn progress_comes_before_the_first_token_and_a_miss_is_explained_at_the_end() {
    let server = Server::start(&SERVER, &[]);
    let long = |end: &str| "The waves and the keeper. ".repeat(14) + end;
    let chat = |end: &str, more: Value| {
        let mut request =
            json!({"messages": user(&long(end)), "max_tokens": 4, "ignore_eos": true, "stream": true});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        request
    };
    let asked = json!({"return_progress": true, "stream_options": {"include_usage": true}});
    let chunks = server.stream(CHAT, &chat("One", asked));
    let progress: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|it| !it.is_null()).collect();
    assert!(!progress.is_empty(), "{chunks:?}");
    let number = |value: &Value, field: &str| value[field].as_u64().expect("a number");
    let prompt = number(&chunks.last().expect("a chunk")["usage"], "prompt_tokens");
    for pair in progress.windows(2) {
        assert!(number(pair[0], "processed") < number(pair[1], "processed"), "{progress:?}");
        assert!(number(pair[0], "time_ms") <= number(pair[1], "time_ms"), "{progress:?}");
    }
    for one in &progress {
        assert!(number(one, "cache") <= number(one, "processed") && number(one, "processed") < prompt);
        assert_eq!(number(one, "total"), prompt);
    }
    let has_text = |chunk: &Value| chunk["choices"][0]["delta"]["content"].is_string();
    let first = chunks.iter().position(has_text).expect("an answer");
    assert!(chunks[first..].iter().all(|chunk| chunk["prompt_progress"].is_null()), "{chunks:?}");
    let silent = server.stream(CHAT, &chat("Two", json!({})));
    assert!(silent.iter().all(|chunk| chunk["prompt_progress"].is_null()), "nobody asked");

    let other = "x".to_owned() + &long("Three");
    let events = |path: &str, request: &Value| server.named_events(path, request).1;
    let message = json!({"messages": user(&other), "max_tokens": 4, "stream": true});
    let pings = events("/v1/messages", &message);
    assert!(
        pings.iter().any(|it| it["type"] == "ping" && it["prompt_progress"]["total"].is_u64()),
        "{pings:?}"
    );
    let response = json!({"input": "y".to_owned() + &other, "max_output_tokens": 4, "stream": true});
    let response = events("/v1/responses", &response);
    let reported: Vec<&Value> = response.iter().filter(|it| it["prompt_progress"].is_object()).collect();
    assert!(!reported.is_empty() && reported.iter().all(|it| it["type"] == "response.in_progress"));
    assert!(reported.iter().all(|it| it["sequence_number"] == 1), "they are not part of the numbered events");

    // The first prompt is cached; one that differs in the middle says where.
    let changed = "The waves and the keeper. ".repeat(9) + &"The waves or the keeper. ".repeat(5);
    let mut request = chat("", json!({"stream_options": {"include_usage": true}}));
    request["messages"] = user(&changed);
    let chunks = server.stream(CHAT, &request);
    let details = &chunks.last().expect("a chunk")["usage"]["prompt_tokens_details"];
    let miss = &details["prefix_miss"];
    assert!(number(miss, "at") < number(miss, "cached"), "{details}");
}
