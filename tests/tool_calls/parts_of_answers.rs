//! Prompts, reasoning and text around calls, equal in all protocols.

use mlx_tests::server::Server;
use mlx_tests::successors::chain;
use serde_json::{Value, json};

use super::{CHAT, PROMPT_END, SERVER, TEMPLATE, assembled, request, server, tool};

fn joined(list: &Value, place: impl Fn(&Value) -> &Value) -> String {
    list.as_array().expect("a list").iter().filter_map(|item| place(item).as_str()).collect()
}

#[test]
fn white_space_between_texts_is_kept_in_all_protocols() {
    let words = ["I call ", "<tool_call>\n{\"name\": \"stop\"}", "\n</tool_call>", " now"];
    let model = chain(TEMPLATE, PROMPT_END, &words);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let expected = "I call  now";
    let whole = server.post(CHAT, &request(&json!({}))).body;
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["content"], message["tool_calls"].as_array().map(Vec::len)),
        (&json!(expected), Some(1))
    );
    let chunks = server.stream(CHAT, &request(&json!({"stream": true})));
    assert_eq!(assembled(&chunks)["content"], expected);

    let ollama = request(&json!({"stream": false}));
    let answer = server.post("/api/chat", &without_temperature(&ollama)).body;
    assert_eq!(answer["message"]["content"], expected, "{answer}");

    let schema = json!({"type": "object"});
    let mut messages =
        json!({"messages": [{"role": "user", "content": "Go"}], "max_tokens": 99, "temperature": 0});
    messages["tools"] = json!([{"name": "stop", "input_schema": schema}]);
    let answer = server.post("/v1/messages", &messages).body;
    assert_eq!(joined(&answer["content"], |block| &block["text"]), expected, "{answer}");
    messages["stream"] = json!(true);
    let (_, events) = server.named_events("/v1/messages", &messages);
    assert_eq!(joined(&json!(events), |event| &event["delta"]["text"]), expected);

    let mut response = json!({"input": "Go", "temperature": 0});
    response["tools"] = json!([{"type": "function", "name": "stop", "parameters": schema}]);
    let answer = server.post("/v1/responses", &response).body;
    let texts: String = answer["output"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|item| item["type"] == "message")
        .map(|item| joined(&item["content"], |part| &part["text"]))
        .collect();
    assert_eq!(texts, expected, "{answer}");
    response["stream"] = json!(true);
    let (_, events) = server.named_events("/v1/responses", &response);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let texts: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(texts, expected);
}

/// Moves the temperature: Ollama has sampling parameters in its options.
fn without_temperature(request: &Value) -> Value {
    let mut request = request.clone();
    request.as_object_mut().expect("an object").remove("temperature");
    request["options"] = json!({"temperature": 0});
    request
}

#[test]
fn the_rendered_prompt_is_the_one_that_the_chat_computes() {
    let (_model, server) = server();
    let user = json!({"role": "user", "content": "Go"});
    let called = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]});
    let begun = json!({"role": "assistant", "content": "Let"});
    for (messages, more) in [
        (json!([user]), json!({})),
        (json!([user, begun]), json!({})),
        (json!([user, begun, user, begun]), json!({"tools": []})),
        (json!([user, called, {"role": "tool", "content": "2", "tool_call_id": "1"}]), json!({})),
        (json!([user, begun]), json!({"tool_choice": "none", "chat_template_kwargs": {"a": 1}})),
        (json!([user, user, begun, user]), json!({"context_policy": "evict-turns", "max_tokens": 9})),
    ] {
        let mut request = request(&json!({"messages": messages, "return_token_ids": true}));
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = server.post(CHAT, &request).body;
        let rendered = server.post("/v1/chat/render", &request).body;
        assert_eq!(rendered["tokens"], answer["prompt_token_ids"], "{request}");
        assert_eq!(rendered["count"], answer["usage"]["prompt_tokens"], "{request}");
        request["add_generation_prompt"] = json!(false);
        let rendered = server.post("/v1/chat/render", &request).body;
        let prompt = rendered["prompt"].as_str().expect("a text");
        assert!(prompt.ends_with("<|im_end|>\n"), "{prompt}");
    }
    let both = json!({"messages": [user, begun], "max_tokens": 5});
    let answer = server.post("/v1/messages", &both).body;
    let counted = server.post("/v1/messages/count_tokens", &json!({"messages": [user, begun]})).body;
    // This API counts cached tokens separately.
    let tokens = |field: &str| answer["usage"][field].as_u64().expect("a number");
    assert_eq!(
        counted["input_tokens"],
        tokens("input_tokens") + tokens("cache_read_input_tokens"),
        "{answer}"
    );
    let rendered = server.post("/v1/chat/render", &json!({"messages": [user, begun]})).body;
    assert_eq!(rendered["count"], counted["input_tokens"]);
    let ollama = server.post("/api/chat", &json!({"messages": [user, begun], "stream": false})).body;
    assert_eq!(ollama["prompt_eval_count"], rendered["count"], "{ollama}");
    let refused =
        server.post("/v1/chat/render", &json!({"messages": [user], "tools": [tool("a"), tool("a")]}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("tools")));
}

#[test]
fn a_model_that_always_thinks_may_be_asked_to() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:<think>\n{% endif %}";
    let model = chain(template, "<think>\n", &["Hm", "</think>", "Yes."]);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let messages = json!([{"role": "user", "content": "Go"}]);
    let shown = server.post("/api/show", &json!({"model": server.get("/v1/models").body["data"][0]["id"]}));
    assert!(
        shown.body["capabilities"].as_array().expect("a list").contains(&json!("thinking")),
        "{}",
        shown.body
    );
    let options = json!({"temperature": 0});
    for think in [json!(true), json!(null)] {
        let request = json!({"messages": messages, "think": think, "stream": false, "options": options});
        let answer = server.post("/api/chat", &request);
        let message = &answer.body["message"];
        assert_eq!(
            (&message["thinking"], &message["content"]),
            (&json!("Hm"), &json!("Yes.")),
            "{}",
            answer.body
        );
    }
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let request = json!({"messages": messages, "max_tokens": 2000, "temperature": 0, "thinking": thinking});
    let answer = server.post("/v1/messages", &request).body;
    assert_eq!(
        (&answer["content"][0]["thinking"], &answer["content"][1]["text"]),
        (&json!("Hm"), &json!("Yes."))
    );
    let request =
        json!({"messages": messages, "temperature": 0, "chat_template_kwargs": {"enable_thinking": true}});
    let answer = server.post(CHAT, &request).body;
    assert_eq!(answer["choices"][0]["message"]["reasoning_content"], "Hm", "{answer}");
    // An effort that the model does not support is rejected by name.
    for effort in ["none", "high"] {
        let request = json!({"messages": messages, "reasoning_effort": effort});
        let refused = server.post(CHAT, &request);
        assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("reasoning_effort")));
    }
}
