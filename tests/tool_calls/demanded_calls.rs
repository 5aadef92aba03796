//! Required calls, and calls of strict tools: they are made, and their arguments match the schema.

use mlx_tests::server::Server;
use mlx_tests::successors::{self, Successors};
use serde_json::{Value, json};

use super::{CHAT, SERVER, assembled, request, server, without_ids};

fn strict_tool(name: &str) -> Value {
    let properties =
        json!({"kind": {"enum": ["calm", "storm"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}});
    let required = json!(["kind", "n"]);
    let parameters = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters}})
}

#[test]
fn a_call_that_is_demanded_comes_and_validates() {
    let (_model, server) = server();
    let tools = json!([strict_tool("one"), strict_tool("two"), strict_tool("three")]);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("one"), named("three")]}});
    for (choice, names) in [
        (json!("required"), &["one", "two", "three"][..]),
        (named("two"), &["two"]),
        (allowed, &["one", "three"]),
    ] {
        for seed in 0..3 {
            let more = json!({"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed, "max_tokens": 2000});
            let answer = server.post(CHAT, &request(&more)).body;
            let one = &answer["choices"][0];
            assert_eq!(one["finish_reason"], "tool_calls", "{answer}");
            assert_eq!(
                (&one["message"]["content"], &one["message"]["reasoning_content"]),
                (&Value::Null, &json!("Hm"))
            );
            for call in without_ids(&one["message"]["tool_calls"]) {
                assert!(names.contains(&call["name"].as_str().expect("a name")), "{call}");
                let arguments: Value =
                    serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("valid JSON");
                assert!(
                    ["calm", "storm"].contains(&arguments["kind"].as_str().expect("a text")),
                    "{arguments}"
                );
                assert!(arguments["n"].as_u64().expect("a number") < 100, "{arguments}");
            }
            let mut more = more;
            more["stream"] = json!(true);
            let streamed = assembled(&server.stream(CHAT, &request(&more)));
            assert_eq!(without_ids(&streamed["tool_calls"]), without_ids(&one["message"]["tool_calls"]));
        }
    }
}

#[test]
fn a_strict_call_is_held_to_its_schema_and_text_before_it_is_free() {
    let (_model, server) = server();
    let more = json!({"tools": [strict_tool("add"), strict_tool("stop")], "max_tokens": 400, "temperature": 1, "seed": 1});
    let free = server.post(CHAT, &request(&json!({"temperature": 1, "seed": 1}))).body;
    let strict = server.post(CHAT, &request(&more)).body;
    let (free, strict) = (&free["choices"][0]["message"], &strict["choices"][0]["message"]);
    let before = free["content"].as_str().expect("a text");
    // After its call the model is unconstrained again.
    assert!(strict["content"].as_str().is_some_and(|text| text.starts_with(before)), "{strict}");
    assert_eq!(strict["reasoning_content"], free["reasoning_content"]);
    let call = &without_ids(&strict["tool_calls"])[0];
    let arguments: Value =
        serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("valid JSON");
    assert!(arguments["n"].as_u64().is_some_and(|n| n < 100) && arguments["a"].is_null(), "{arguments}");
}

/// A template in the style of Gemma 4's, with special tokens as markers.
const BARE: &str = "\
{%- for t in tools or [] %}{{ t.function.name }} {% endfor %}\
{%- for m in messages %}[{{ m.role }}]{{ m.content }}\
{%- for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name + '{' }}\
{%- for k, v in c.function.arguments.items() %}{{ ',' if not loop.first }}{{ k }}:\
{%- if v is string %}<|q|>{{ v }}<|q|>{% else %}{{ v | tojson }}{% endif %}{% endfor %}{{ '}' }}<tool_call|>\
{%- endfor %}{% endfor %}[assistant]";

#[test]
fn markers_may_be_special_tokens() {
    let template = BARE.replace("<|q|>", "<|\"|>");
    let model = successors::model(&Successors {
        template: &template,
        special: ["<|tool_call>", "<tool_call|>", "<|endoftext|>", "<|\"|>", "<|im_end|>"],
        words: &["Sure.", "call:add{a:1,text:", "b c", "}"],
        prompt_end: "[assistant]",
        first: "Sure.",
        next: &[
            ("Sure.", &[("<|tool_call>", 4.0)]),
            ("<|tool_call>", &[("call:add{a:1,text:", 4.0)]),
            ("call:add{a:1,text:", &[("<|\"|>", 4.0)]),
            // Twice, separated by a penalty on earlier tokens.
            ("<|\"|>", &[("b c", 4.0), ("}", 3.9)]),
            ("b c", &[("<|\"|>", 4.0)]),
            ("}", &[("<tool_call|>", 4.0)]),
            ("<tool_call|>", &[("<|endoftext|>", 4.0)]),
        ],
    });
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let free = json!({"presence_penalty": 1});
    let message = &server.post(CHAT, &request(&free)).body["choices"][0]["message"];
    assert_eq!(message["content"], "Sure.", "{message}");
    let expected = [json!({"name": "add", "arguments": "{\"a\":1,\"text\":\"b c\"}"})];
    assert_eq!(without_ids(&message["tool_calls"]), expected, "{message}");
    let tools = json!([strict_tool("add")]);
    for (choice, content) in [("required", Value::Null), ("auto", json!("Sure."))] {
        for seed in 0..4 {
            let more = json!({"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed, "max_tokens": 300});
            let one = &server.post(CHAT, &request(&more)).body["choices"][0];
            assert_eq!(
                (&one["finish_reason"], &one["message"]["content"]),
                (&json!("tool_calls"), &content),
                "{one}"
            );
            let call = &without_ids(&one["message"]["tool_calls"])[0];
            let arguments: Value =
                serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("valid JSON");
            assert!(["calm", "storm"].contains(&arguments["kind"].as_str().expect("a text")), "{arguments}");
            assert!(arguments["n"].as_u64().expect("a number") < 100, "{arguments}");
        }
    }
}
