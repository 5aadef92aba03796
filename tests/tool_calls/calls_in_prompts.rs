//! Rendering conversations with tool calls into prompts, and rejecting invalid ones.

use mlx_tests::server::Server;
use mlx_tests::successors::chain;
use serde_json::{Value, json};

use super::{CHAT, SERVER, TEMPLATE, request, server, tool};

fn prompt_of(server: &Server, messages: &Value, tools: &Value) -> String {
    let rendered = server.post("/v1/chat/render", &json!({"messages": messages, "tools": tools}));
    assert_eq!(rendered.status, 200, "{}", rendered.body);
    rendered.body["prompt"].as_str().expect("a text").to_owned()
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}})
}

#[test]
fn earlier_calls_and_results_are_in_the_prompt() {
    let (_model, server) = server();
    let messages = json!([
        {"role": "user", "content": "Go", "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning": "Hm", "tool_calls": [call("1", "{\"a\": 1}"), call("2", "no JSON")]},
        {"role": "tool", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}], "tool_call_id": "1"},
        {"role": "tool", "content": "bad", "tool_call_id": "2"},
    ]);
    let prompt = prompt_of(&server, &messages, &json!([tool("add")]));
    for part in [
        "<think>Hm</think>",
        "{\"name\": \"add\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"add\", \"arguments\": \"no JSON\"}",
        "<tool_response>2\n3</tool_response>",
        "\"description\": \"Does it.\"",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

#[test]
fn calls_without_results_and_results_without_calls_are_named() {
    let (_model, server) = server();
    let asked = json!({"role": "user", "content": "Go"});
    let called =
        json!({"role": "assistant", "content": null, "tool_calls": [call("one", "{}"), call("two", "{}")]});
    let result = |id: &str| json!({"role": "tool", "content": "1", "tool_call_id": id});
    for (messages, param, id) in [
        (json!([asked, called, result("one")]), "messages[1].tool_calls", "two"),
        (json!([asked, called, result("one"), result("three")]), "messages[3].tool_call_id", "three"),
        (json!([asked, called, result("one"), result("one")]), "messages[3].tool_call_id", "one"),
        (json!([asked, result("zero")]), "messages[1].tool_call_id", "zero"),
    ] {
        let reply = server.post(CHAT, &request(&json!({"messages": messages})));
        let error = &reply.body["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().expect("a text").contains(id), "{error}");
    }
}

#[test]
fn the_last_message_of_the_assistant_is_continued() {
    let model = chain(TEMPLATE, "Once", &[" upon", " a time"]);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let messages = json!([{"role": "user", "content": "Tell"}, {"role": "assistant", "content": "Once"}]);
    let answer = server.post(CHAT, &json!({"messages": messages, "temperature": 0}));
    assert_eq!(answer.body["choices"][0]["message"]["content"], " upon a time", "{}", answer.body);
}

#[test]
fn tools_are_refused_where_the_template_cannot_show_them() {
    let words = ["a"];
    let no_calls = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}:";
    for (template, word) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}:", "does not support tools"),
        (no_calls, "unknown format"),
    ] {
        let model = chain(template, ":", &words);
        let server = Server::start_on(&SERVER, model.path(), &[]);
        let reply = server.post(CHAT, &request(&json!({})));
        let error = &reply.body["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!("tools")), "{error}");
        assert!(error["message"].as_str().expect("a text").contains(word), "{error}");
        assert_eq!(server.post(CHAT, &request(&json!({"tool_choice": "none"}))).status, 200);
    }
}

#[test]
fn hints_change_nothing_and_efforts_reach_the_template() {
    let template = "{{ reasoning_effort|default('?') }}{% for m in messages %}{{ m.content }}{% endfor %}:";
    let model = chain(template, ":", &["a"]);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let ask = |more: Value| {
        let mut request =
            json!({"messages": [{"role": "user", "content": "Go", "name": "Ann"}], "return_token_ids": true});
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server.post(CHAT, &request)
    };
    let plain = ask(json!({}));
    let hints = json!({"store": true, "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s", "service_tier": "flex", "user": "u"});
    let hinted = ask(hints);
    assert_eq!(
        (hinted.status, &hinted.body["prompt_token_ids"]),
        (200, &plain.body["prompt_token_ids"]),
        "{}",
        hinted.body
    );
    let effort = ask(json!({"reasoning_effort": "high"}));
    assert_eq!(effort.status, 200, "{}", effort.body);
    assert_ne!(effort.body["prompt_token_ids"], plain.body["prompt_token_ids"]);
    for (more, param) in [
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (
            json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
            "reasoning_effort",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ] {
        let refused = ask(more);
        assert_eq!(
            (refused.status, &refused.body["error"]["param"]),
            (400, &json!(param)),
            "{}",
            refused.body
        );
    }
}

/// The values that an error suggests are valid for this model, in each API that rejects efforts.
#[test]
fn a_refused_effort_proposes_what_the_template_takes() {
    let messages = "{% for m in messages %}{{ m.content }}{% endfor %}:";
    for (template, proposed) in [
        (messages.to_owned(), [vec![], vec!["false"]]),
        (
            format!("{{% if enable_thinking %}}!{{% endif %}}{messages}"),
            [vec!["none"], vec!["true", "false"]],
        ),
    ] {
        let model = chain(&template, ":", &["a"]);
        let server = Server::start_on(&SERVER, model.path(), &[]);
        let user = json!([{"role": "user", "content": "Go"}]);
        for (path, name, words, request) in [
            (
                CHAT,
                "reasoning_effort",
                &proposed[0],
                &|effort: Value| json!({"messages": user, "reasoning_effort": effort}),
            ),
            (
                "/v1/responses",
                "reasoning.effort",
                &proposed[0],
                &|effort| json!({"input": "Go", "reasoning": {"effort": effort}}),
            ),
            (
                "/api/chat",
                "think",
                &proposed[1],
                &|effort| json!({"messages": user, "think": effort, "stream": false}),
            ),
        ] as [(_, _, _, &dyn Fn(Value) -> Value); 3]
        {
            let refused = server.post(path, &request(json!("low")));
            let error =
                if path == "/api/chat" { &refused.body["error"] } else { &refused.body["error"]["message"] };
            let message = error.as_str().unwrap_or_else(|| panic!("{path}: {}", refused.body));
            assert!(refused.status == 400 && message.contains(name), "{path}: {message}");
            assert!(
                message.ends_with("leave it out") && message.contains("chat template"),
                "{path}: {message}"
            );
            let found: Vec<&str> =
                message.split("give ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
            assert_eq!(found, *words, "{path}: {message}");
            for word in found {
                let value = serde_json::from_str(word).unwrap_or_else(|_| json!(word));
                assert_eq!(server.post(path, &request(value)).status, 200, "{path}: {word}");
            }
            assert_eq!(server.post(path, &request(Value::Null)).status, 200, "{path}");
        }
        let hint = json!({"max_tokens": 5, "messages": user, "output_config": {"effort": "low"}});
        assert_eq!(server.post("/v1/messages", &hint).status, 200);
    }
}
