//! The Messages API over HTTP: tool calls and reasoning round-trip, tokens are counted, and errors have the format that clients parse.

use mlx_tests::server::{Reply, Server};
use mlx_tests::successors::{self, Successors, chain};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A template in the style of Qwen's that renders earlier reasoning.
const TEMPLATE: &str = "\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>
{%- else %}
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{\"name\": {{ call.function.name | tojson }}, \"arguments\": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}";
const PROMPT_END: &str = "<|im_start|>assistant\n";

/// Reasoning, a sentence, and two calls with split arguments.
const WORDS: [&str; 12] = [
    "<think>",
    "Hm",
    "</think>",
    "Let me see.",
    "\n<tool",
    "_call>",
    "\n{\"name\": \"add\", ",
    "\"arguments\": {\"a\": 1, \"te",
    "xt\": \"b c\"}",
    "}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"stop\"}\n</tool_call",
    ">",
];

fn tool(name: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    json!({"name": name, "description": "Does it.", "input_schema": schema})
}

fn request(more: &Value) -> Value {
    let mut request = json!({
        "model": "tiny",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Go"}],
        "tools": [tool("add"), tool("stop")],
        "temperature": 0,
    });
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

fn server() -> (tempfile::TempDir, Server) {
    let model = chain(TEMPLATE, PROMPT_END, &WORDS);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    (model, server)
}

/// Returns the answer to a request, which must succeed.
fn ask(server: &Server, more: &Value) -> Value {
    let reply = server.post(PATH, &request(more));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body
}

/// Returns the total number of prompt tokens of an answer.
fn prompt_tokens(answer: &Value) -> u64 {
    let number = |field: &str| answer["usage"][field].as_u64().expect("a number");
    number("input_tokens") + number("cache_read_input_tokens")
}

/// Returns the first turn and the results of its calls.
fn second_turn(content: &Value, result: &Value) -> Value {
    let results: Vec<Value> = content
        .as_array()
        .expect("blocks")
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": result}))
        .collect();
    json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": results},
    ])
}

#[test]
fn calls_go_there_and_back() {
    let (_model, server) = server();
    let first = ask(&server, &json!({}));
    let [thought, text, add, stop] = first["content"].as_array().expect("blocks").as_slice() else {
        panic!("{first}")
    };
    assert_eq!((&thought["type"], &thought["thinking"]), (&json!("thinking"), &json!("Hm")));
    assert_eq!(text, &json!({"type": "text", "text": "Let me see.", "citations": null}));
    assert_eq!((&add["name"], &add["input"]), (&json!("add"), &json!({"a": 1, "text": "b c"})));
    assert_eq!((&stop["name"], &stop["input"]), (&json!("stop"), &json!({})));
    assert_ne!(add["id"], stop["id"]);
    assert_eq!((&first["stop_reason"], &first["role"]), (&json!("tool_use"), &json!("assistant")));
    assert_eq!(first["usage"]["output_tokens_details"]["thinking_tokens"], 3, "two tags and a word");

    let second = ask(&server, &json!({"messages": second_turn(&first["content"], &json!("42"))}));
    assert_ne!(second["id"], first["id"]);
    let cached = second["usage"]["cache_read_input_tokens"].as_u64().expect("a number");
    let known = prompt_tokens(&first);
    assert!(cached >= known, "{cached} of {known} tokens are known from the first turn");
    let open = json!({"messages": [
        {"role": "user", "content": "Go"}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "On"},
    ]});
    let error = server.post(PATH, &request(&open));
    let message = error.body["error"]["message"].as_str().expect("a text");
    assert!(
        error.status == 400 && message.contains("without `tool_result` blocks immediately after"),
        "{message}"
    );
}

#[test]
fn streamed_equals_whole() {
    let (_model, server) = server();
    for display in ["summarized", "omitted"] {
        let thinking = json!({"type": "adaptive", "display": display});
        let whole = ask(&server, &json!({"thinking": thinking}));
        let (text, events) =
            server.named_events(PATH, &request(&json!({"thinking": thinking, "stream": true})));
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(names, kinds);
        assert_eq!((kinds.first(), kinds.last()), (Some(&"message_start"), Some(&"message_stop")));
        let mut blocks: Vec<Value> = Vec::new();
        let mut inputs = vec![String::new(); 4];
        for event in &events {
            match event["type"].as_str().expect("a type") {
                "content_block_start" => blocks.push(event["content_block"].clone()),
                "content_block_delta" => {
                    let index = event["index"].as_u64().expect("an index") as usize;
                    for key in ["thinking", "signature", "text"] {
                        if let Some(more) = event["delta"][key].as_str() {
                            let so_far = blocks[index][key].as_str().expect("text").to_owned();
                            blocks[index][key] = json!(so_far + more);
                        }
                    }
                    inputs[index] += event["delta"]["partial_json"].as_str().unwrap_or_default();
                }
                "message_delta" => assert_eq!(event["delta"]["stop_reason"], whole["stop_reason"]),
                _ => {}
            }
        }
        for (block, input) in blocks.iter_mut().zip(&inputs).filter(|(_, input)| !input.is_empty()) {
            block["input"] = serde_json::from_str(input).expect("json");
        }
        let without_ids = |blocks: &[Value]| -> Vec<Value> {
            let strip = |block: &Value| {
                let mut block = block.as_object().expect("a block").clone();
                block.remove("id");
                Value::Object(block)
            };
            blocks.iter().map(strip).collect()
        };
        assert_eq!(without_ids(&blocks), without_ids(whole["content"].as_array().expect("blocks")));
    }
}

#[test]
fn withheld_thoughts_reach_the_model_again() {
    let (_model, server) = server();
    let omitted = ask(&server, &json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    let block = &omitted["content"][0];
    assert_eq!((&block["type"], &block["thinking"]), (&json!("thinking"), &json!("")));
    assert!(!block["signature"].as_str().expect("a text").contains("Hm"));
    let count = |block: Option<Value>| {
        let blocks: Vec<Value> = block.into_iter().chain([json!({"type": "text", "text": "Yes"})]).collect();
        let messages = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": "On"}]);
        server.post(COUNT, &json!({"messages": messages})).body["input_tokens"].as_u64().expect("a number")
    };
    let shown = json!({"type": "thinking", "thinking": "Hm", "signature": ""});
    assert_eq!(count(Some(block.clone())), count(Some(shown)));
    assert!(count(Some(block.clone())) > count(None), "the prompt must contain the reasoning");
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let (_model, server) = server();
    let later = json!({"messages": [
        {"role": "user", "content": "Go"},
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "I go"},
    ], "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be kind."}]});
    for more in [json!({}), later] {
        let counted = server.post(COUNT, &request(&more));
        assert_eq!(counted.status, 200, "{}", counted.body);
        assert_eq!(counted.body, json!({"input_tokens": prompt_tokens(&ask(&server, &more))}));
    }
}

#[test]
fn tools_that_come_late_leave_the_prompt_as_it_is() {
    let (_model, server) = server();
    let first = ask(&server, &json!({}));
    let reference = json!([{"type": "tool_reference", "tool_name": "late"}]);
    let mut late = tool("late");
    late["defer_loading"] = json!(true);
    let messages = second_turn(&first["content"], &reference);
    let more = json!({"tools": [tool("add"), late, tool("stop")], "messages": messages});
    let second = ask(&server, &more);
    let cached = second["usage"]["cache_read_input_tokens"].as_u64().expect("a number");
    assert!(cached >= prompt_tokens(&first), "{cached} tokens are known");
    let named = json!({"tool_choice": {"type": "tool", "name": "late"}, "max_tokens": 400});
    let mut more = more;
    more.as_object_mut().expect("an object").extend(named.as_object().expect("an object").clone());
    let called = ask(&server, &more);
    let call = called["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("late")), "{called}");
}

#[test]
fn an_answer_ends_for_the_reason_that_it_tells() {
    let next: [(&str, &[(&str, f32)]); 2] = [("tick ", &[("tock ", 4.0)]), ("tock ", &[("tick ", 4.0)])];
    let model = successors::model(&Successors {
        template: TEMPLATE,
        special: ["<|pad|>", "<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        words: &["tick ", "tock "],
        prompt_end: PROMPT_END,
        first: "tick ",
        next: &next,
    });
    let server = Server::start_on(&SERVER, model.path(), &[]);
    for (more, reason, sequence) in [
        (json!({"max_tokens": 3}), "max_tokens", Value::Null),
        (json!({"stop_sequences": ["tick tock tick"]}), "stop_sequence", json!("tick tock tick")),
        (json!({"max_tokens": 32000}), "model_context_window_exceeded", Value::Null),
    ] {
        let answer = ask(
            &server,
            &json!({"tools": []})
                .as_object()
                .map(|none| {
                    Value::Object(
                        none.clone()
                            .into_iter()
                            .chain(more.as_object().expect("an object").clone())
                            .collect(),
                    )
                })
                .expect("an object"),
        );
        assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!(reason), &sequence));
    }
}

fn error(reply: &Reply, status: u16, kind: &str) -> String {
    assert_eq!((reply.status, &reply.body["type"]), (status, &json!("error")), "{}", reply.body);
    assert_eq!(reply.body["error"]["type"], kind, "{}", reply.body);
    assert_eq!(reply.body["request_id"], reply.header("x-request-id"));
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    reply.body["error"]["message"].as_str().expect("a text").to_owned()
}

#[test]
fn errors_have_the_form_that_clients_read() {
    let (_model, server) = server();
    let long = json!({"messages": [{"role": "user", "content": "tide ".repeat(2000)}]});
    let count = server.post(COUNT, &request(&long)).body["input_tokens"].as_u64().expect("a number");
    let message = error(&server.post(PATH, &request(&long)), 400, "invalid_request_error");
    assert_eq!(message, format!("prompt is too long: {count} tokens > 4096 maximum"));

    let no_model = json!({"model": "none"});
    error(&server.post(PATH, &request(&no_model)), 404, "not_found_error");
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AQID"});
    let content = json!([{"type": "image", "source": source}]);
    let image = json!({"messages": [{"role": "user", "content": content}]});
    let message = error(&server.post(PATH, &request(&image)), 400, "invalid_request_error");
    assert!(message.contains("holds an image") && message.contains("cannot be given to"), "{message}");
    let limit = json!({"messages": [{"role": "user", "content": "Go"}]});
    assert!(error(&server.post(PATH, &limit), 400, "invalid_request_error").starts_with("max_tokens"));

    let small = Server::start(&SERVER, &["--max-body", "1KiB"]);
    error(&small.post(PATH, &request(&long)), 413, "request_too_large");
}

#[test]
fn answers_and_streams_have_their_id_where_clients_read_it() {
    let (_model, server) = server();
    for more in [json!({}), json!({"stream": true})] {
        let given = [("x-request-id", "mine")];
        let reply = server.send("POST", PATH, &given, &request(&more));
        assert_eq!((reply.status, reply.header("request-id")), (200, "mine"), "{more}");
    }
    assert_eq!(server.send("POST", "/v1/completions", &[], &json!({"prompt": "a"})).find("request-id"), None);
}

#[test]
fn fields_of_other_servers_are_named_and_not_used() {
    let (_model, server) = server();
    let more = json!({
        "safeguards": {"classifier_context": {}},
        "metadata": {"user_id": "someone"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "tools": [tool("add"), {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    });
    // Counting tokens ignores the fields of an answer too.
    let of_answers = "metadata, tools.1, max_tokens, temperature, safeguards";
    for (path, ignored) in [(PATH, "metadata, tools.1, safeguards"), (COUNT, of_answers)] {
        let reply = server.post(path, &request(&more));
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.header("x-ignored-fields"), ignored);
    }
}

#[test]
fn where_a_prompt_left_a_kept_one_is_said() {
    let server = Server::start(&SERVER, &[]);
    let long = "The keeper of the lighthouse writes down every tide and the wind. ".repeat(3);
    let ask = |first: &str, more: &[&str]| {
        let texts = [&[first, &long], more].concat();
        let messages: Vec<Value> =
            texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        server.post(PATH, &json!({"model": "tiny", "max_tokens": 1, "messages": messages}))
    };
    assert_eq!(ask("Monday", &[]).find("x-prefix-miss"), None);
    let miss = |reply: &Reply| {
        let (at, kept) = reply.header("x-prefix-miss").split_once('/').expect("two numbers");
        (at.parse::<usize>().expect("a number"), kept.parse::<usize>().expect("a number"))
    };
    let (at, kept) = miss(&ask("Monday", &["And then?"]));
    assert!(kept - at < 16, "only the end of the answer may be missing: {at} of {kept}");
    let (at, kept) = miss(&ask("Sunday", &["And then?"]));
    assert!(at < 40 && kept > at + 64, "{at} of {kept}");
}

/// With keys, a client finds only its own cached prompts.
#[test]
fn a_client_does_not_see_where_it_leaves_the_prompt_of_another_one() {
    let (one, other) = ("the-key-of-one-client", "the-key-of-another-one");
    let keys = ["--api-key", one, "--api-key", other];
    let text = "The keeper of the lighthouse writes down every tide and the wind. ".repeat(3);
    for (more, is_shared) in [(&[][..], false), (&["--share-prefixes"][..], true)] {
        let server = Server::start(&SERVER, &[&keys[..], more].concat());
        let ask = |key: &str, end: &str| {
            let message = json!({"role": "user", "content": format!("{text}{end}")});
            let request = json!({"model": "tiny", "max_tokens": 1, "messages": [message]});
            let reply = server.post_as(key, PATH, &request);
            assert_eq!(reply.status, 200, "{}", reply.body);
            let cached = reply.body["usage"]["cache_read_input_tokens"].as_u64().expect("a count");
            (cached > 64, reply.find("x-prefix-miss").is_some())
        };
        let guess = "No light answers; then all of them do, and none of it can be read from here.";
        assert_eq!(ask(one, guess), (false, false), "the first request finds no prefix");
        assert_eq!(ask(other, "Another one"), (is_shared, is_shared));
        assert_eq!(
            ask(other, guess),
            (true, !is_shared),
            "only the client's own prefix, up to the first difference"
        );
        assert_eq!(ask(one, "Once more"), (true, true), "its own");
    }
}
