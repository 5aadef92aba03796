//! Chats over HTTP: reasoning, channels, tool calls and long conversations.

use mlx_tests::server::Server;
use mlx_tests::{harmony, model_copy};
use serde_json::{Value, json};

use super::{SERVER, user};

/// The template opens a reasoning block in the prompt, and a logit bias closes it.
#[test]
fn reasoning_has_a_field_of_its_own() {
    let copy = model_copy("llama-f32");
    let path = copy.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}\n";
    config["chat_template"] = json!(template);
    std::fs::write(&path, config.to_string()).expect("it can be written");
    let server = Server::start_on(&SERVER, copy.path(), &[]);
    let request = json!({"messages": user("a"), "temperature": 0, "max_tokens": 20, "ignore_eos": true});
    let message = &server.post("/v1/chat/completions", &request).body["choices"][0]["message"];
    assert_eq!(message["content"], "");
    assert!(!message["reasoning_content"].as_str().expect("a thought").is_empty());
    let mut request = request;
    request["stream"] = json!(true);
    let chunks = server.stream("/v1/chat/completions", &request);
    let thought: String =
        chunks.iter().filter_map(|it| it["choices"][0]["delta"]["reasoning_content"].as_str()).collect();
    assert_eq!(json!(thought), message["reasoning_content"]);
}

/// The markers of gpt-oss are special tokens without text; the parser knows them by id.
#[test]
fn channels_become_thought_and_answer() {
    let model = harmony::model();
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let penalty: f64 = harmony::PRESENCE_PENALTY.parse().expect("a number");
    let mut request = json!({"messages": user("Hi"), "temperature": 0, "presence_penalty": penalty});
    let answer = server.post("/v1/chat/completions", &request).body;
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("Hello"), &json!("Hmm")),
        "{answer}"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // A stop string that holds text back does not move it across a marker.
    for stop in [json!(null), json!("Hello!"), json!("Hmmm")] {
        (request["stream"], request["stop"]) = (json!(true), stop);
        let chunks = server.stream("/v1/chat/completions", &request);
        for (field, expected) in [("reasoning_content", "Hmm"), ("content", "Hello")] {
            let text: String =
                chunks.iter().filter_map(|it| it["choices"][0]["delta"][field].as_str()).collect();
            assert_eq!(text, expected, "{chunks:?}");
        }
    }
    let history = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hmm"},
        {"role": "user", "content": "Again"},
    ]);
    let rendered = server.post("/v1/chat/render", &json!({"messages": history})).body;
    assert!(
        rendered["prompt"].as_str().expect("text").contains("final<|message|>Hello<|end|>"),
        "{rendered}"
    );
}

#[test]
fn calls_of_tools_and_their_results_reach_the_template() {
    let server = Server::start(&SERVER, &[]);
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]);
    let rendered = server.post("/v1/chat/render", &json!({"messages": messages})).body;
    let prompt = rendered["prompt"].as_str().expect("text");
    assert!(prompt.contains("<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n3<|im_end|>"), "{prompt}");
    let answer = server.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let wrong = json!([{"role": "user", "content": "a", "tool_calls": [call], "mood": 1}]);
    let refused = server.post("/v1/chat/completions", &json!({"messages": wrong}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("messages[0].tool_calls")));
}

/// A conversation that is too long is rejected with both token counts, unless the request allows dropping its oldest turns.
#[test]
fn long_conversations_are_refused_or_cut_by_policy() {
    let server = Server::start(&SERVER, &[]);
    let turn = |turn: usize| {
        let content_of =
            |role: &str| json!({"role": role, "content": format!("Say number {turn} of the waves.")});
        [content_of("user"), content_of("assistant")]
    };
    let mut messages: Vec<Value> = vec![json!({"role": "system", "content": "Be brief."})];
    messages.extend((0..20).flat_map(turn));
    messages.push(json!({"role": "user", "content": "And now?"}));
    let ask = |policy: Option<&str>, stream: bool| {
        let request = json!({"messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true,
            "context_policy": policy, "stream": stream});
        server.post("/v1/chat/completions", &request)
    };
    for policy in [None, Some("stop")] {
        let refused = ask(policy, false);
        let message = refused.body["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("messages")));
        assert!(message.contains("tokens; the model's context holds 256"), "{message}");
    }
    for policy in ["evict-turns", "slide"] {
        let answer = ask(Some(policy), false);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let dropped: u64 = answer.header("x-dropped-messages").parse().expect("a number");
        assert!(dropped > 0 && dropped.is_multiple_of(2), "{dropped}: whole turns");
        assert_eq!(answer.body["dropped_messages"], json!(dropped));
        assert!(answer.body["usage"]["prompt_tokens"].as_u64().expect("a number") <= 256 - 9);
        let exactness = answer.header("x-exactness").to_owned();
        assert_eq!(exactness == "approximate", policy == "slide", "{exactness}");
        // The answer equals that to the remaining messages.
        let seen: Vec<Value> =
            messages[..1].iter().chain(&messages[1 + dropped as usize..]).cloned().collect();
        let request = json!({"messages": seen, "max_tokens": 9, "temperature": 0, "ignore_eos": true});
        let fresh = server.post("/v1/chat/completions", &request);
        assert_eq!(fresh.body["choices"], answer.body["choices"]);
        assert!(fresh.body.get("dropped_messages").is_none());
    }
    let unknown = ask(Some("forget"), false);
    assert_eq!((unknown.status, &unknown.body["error"]["param"]), (400, &json!("context_policy")));
}
