//! Tool calls over HTTP: the model's output becomes calls, streamed or not, and unsupported requests are rejected.

mod calls_in_prompts;
mod demanded_calls;
mod number_texts;
mod parts_of_answers;

use mlx_tests::server::Server;
use mlx_tests::successors::chain;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

/// A template in the style of Qwen's.
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
const WORDS: [&str; 14] = [
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
    " ",
    "\n\n",
];

fn tool(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    json!({"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}})
}

fn request(more: &Value) -> Value {
    let mut request = json!({
        "messages": [{"role": "user", "content": "Go"}],
        "tools": [tool("add"), tool("stop")],
        "temperature": 0,
    });
    let object = request.as_object_mut().expect("an object");
    object.extend(more.as_object().expect("an object").clone());
    request
}

fn server() -> (tempfile::TempDir, Server) {
    let model = chain(TEMPLATE, PROMPT_END, &WORDS);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    (model, server)
}

const CHAT: &str = "/v1/chat/completions";

/// Assembles the chunks of one answer as a client does.
fn assembled(chunks: &[Value]) -> Value {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::<Value>::new());
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                assert_eq!((&part["type"], &part["function"]["arguments"]), (&json!("function"), &json!("")));
                calls.push(json!({"id": part["id"], "type": "function", "function": {"name": part["function"]["name"], "arguments": ""}}));
            } else {
                assert_eq!(index + 1, calls.len(), "calls must be streamed one after the other");
                let keys: Vec<&String> = part.as_object().expect("an object").keys().collect();
                assert_eq!(keys, ["index", "function"], "id and name must be sent once");
                let arguments = &mut calls[index]["function"]["arguments"];
                let more = part["function"]["arguments"].as_str().expect("a text");
                *arguments = json!(arguments.as_str().expect("a text").to_owned() + more);
            }
        }
    }
    json!({"content": content, "reasoning_content": reasoning, "tool_calls": calls})
}

fn without_ids(calls: &Value) -> Vec<Value> {
    calls.as_array().expect("calls").iter().map(|call| call["function"].clone()).collect()
}

#[test]
fn calls_come_whole_and_streamed() {
    let (_model, server) = server();
    let answer = server.post(CHAT, &request(&json!({})));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let choice = &answer.body["choices"][0];
    let message = &choice["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Let me see."), &json!("Hm")));
    let expected = [
        json!({"name": "add", "arguments": "{\"a\": 1, \"text\": \"b c\"}"}),
        json!({"name": "stop", "arguments": "{}"}),
    ];
    assert_eq!(without_ids(&message["tool_calls"]), expected, "{message}");
    assert_eq!((&choice["finish_reason"], &message["refusal"]), (&json!("tool_calls"), &Value::Null));
    let usage = &answer.body["usage"];
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3, "two tags and a word");
    assert_eq!(usage["completion_tokens"], WORDS.len() + 1);

    let chunks =
        server.stream(CHAT, &request(&json!({"stream": true, "stream_options": {"include_usage": true}})));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    let (usage, chunks) = chunks.split_last().expect("chunks");
    assert_eq!(
        (&usage["choices"], &usage["usage"]["completion_tokens_details"]["reasoning_tokens"]),
        (&json!([]), &json!(3))
    );
    let last = &chunks.last().expect("an end")["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("tool_calls")));
    let streamed = assembled(chunks);
    assert_eq!(without_ids(&streamed["tool_calls"]), expected);
    assert_eq!(
        (&streamed["content"], &streamed["reasoning_content"]),
        (&message["content"], &message["reasoning_content"])
    );
    // Reasoning, then the answer, then calls.
    let kind = |chunk: &Value| {
        ["reasoning_content", "content", "tool_calls"]
            .iter()
            .position(|key| chunk["choices"][0]["delta"].get(key).is_some_and(|it| !it.is_null()))
    };
    let kinds: Vec<usize> = chunks.iter().filter_map(kind).collect();
    assert!(kinds.is_sorted(), "{kinds:?}");
    let ids = |calls: &Value| -> Vec<String> {
        calls
            .as_array()
            .expect("calls")
            .iter()
            .map(|call| call["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    let mut all = [ids(&message["tool_calls"]), ids(&streamed["tool_calls"])].concat();
    assert!(all.iter().all(|id| id.len() == 29 && id.starts_with("call_")), "{all:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "ids are unique");
}

#[test]
fn calls_of_several_choices_are_counted_within_each() {
    let (_model, server) = server();
    let answer = server.post(CHAT, &request(&json!({"n": 2})));
    for choice in answer.body["choices"].as_array().expect("choices") {
        assert_eq!(without_ids(&choice["message"]["tool_calls"]).len(), 2, "{choice}");
    }
    let chunks = server.stream(CHAT, &request(&json!({"n": 2, "stream": true})));
    for index in 0..2 {
        let own: Vec<Value> =
            chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).cloned().collect();
        assert_eq!(without_ids(&assembled(&own)["tool_calls"]).len(), 2);
    }
}

#[test]
fn one_call_ends_the_answer_if_the_client_wants_one() {
    let (_model, server) = server();
    // The answer has no natural end, so only the server can end it.
    let more = json!({"parallel_tool_calls": false, "ignore_eos": true, "max_tokens": 3000});
    let answer = server.post(CHAT, &request(&more));
    let choice = &answer.body["choices"][0];
    assert_eq!(without_ids(&choice["message"]["tool_calls"]).len(), 1, "{choice}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    let tokens = answer.body["usage"]["completion_tokens"].as_u64().expect("a number");
    assert!(tokens < 2000, "{tokens} tokens: the rest is not generated");
    let mut more = more;
    more["stream"] = json!(true);
    let chunks = server.stream(CHAT, &request(&more));
    assert_eq!(without_ids(&assembled(&chunks)["tool_calls"]).len(), 1);
    assert_eq!(chunks.last().expect("an end")["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn a_call_that_the_limit_cuts_keeps_its_beginning() {
    let (_model, server) = server();
    let answer = server.post(CHAT, &request(&json!({"max_tokens": 8})));
    let choice = &answer.body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1, \"te", "{choice}");
    // Until the marker is certainly a call, it is text.
    let answer = server.post(CHAT, &request(&json!({"max_tokens": 6})));
    assert_eq!(answer.body["choices"][0]["message"]["content"], "Let me see.\n<tool_call>");
}

#[test]
fn without_tools_nothing_is_a_call() {
    let (_model, server) = server();
    for more in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let message = &server.post(CHAT, &request(&more)).body["choices"][0]["message"];
        assert!(message.get("tool_calls").is_none(), "{message}");
        assert!(message["content"].as_str().expect("a text").contains("</tool_call>"), "{message}");
    }
}

#[test]
fn a_format_can_be_named() {
    let template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}:";
    let model = chain(template, ":", &["[TOOL_CALLS]", "add[ARGS]{}"]);
    let server = Server::start_on(&SERVER, model.path(), &["--tool-format", "ministral"]);
    let answer = server.post(CHAT, &request(&json!({}))).body;
    assert_eq!(
        without_ids(&answer["choices"][0]["message"]["tool_calls"]),
        [json!({"name": "add", "arguments": "{}"})]
    );
    let server = Server::start_on(&SERVER, model.path(), &["--tool-format", "morse"]);
    assert_eq!(server.post(CHAT, &request(&json!({}))).status, 503);
}
