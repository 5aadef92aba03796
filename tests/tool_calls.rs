//! Calls of tools over HTTP: what a model writes becomes calls, streamed and whole, and what cannot be honored is refused.

use mlx_tests::server::Server;
use mlx_tests::successors::{self, Successors, chain};
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

/// A thought, a sentence, and two calls with arguments in pieces.
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

/// What a client makes of the chunks of one answer.
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
                assert_eq!(index + 1, calls.len(), "calls come one after the other");
                let keys: Vec<&String> = part.as_object().expect("an object").keys().collect();
                assert_eq!(keys, ["index", "function"], "id and name come once");
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
    // Thoughts, then the answer, then calls.
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
    // Without an end of its own, so that only the server can end it.
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
            let more = json!({"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed, "max_tokens": 400});
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
    assert_eq!(
        (&strict["content"], &strict["reasoning_content"]),
        (&free["content"], &free["reasoning_content"])
    );
    let call = &without_ids(&strict["tool_calls"])[0];
    let arguments: Value =
        serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("valid JSON");
    assert!(arguments["n"].as_u64().is_some_and(|n| n < 100) && arguments["a"].is_null(), "{arguments}");
}

#[test]
fn a_call_that_the_limit_cuts_keeps_its_beginning() {
    let (_model, server) = server();
    let answer = server.post(CHAT, &request(&json!({"max_tokens": 8})));
    let choice = &answer.body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1, \"te", "{choice}");
    // Before it is certain that it is a call, it is text.
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
    for (template, word) in
        [("{% for m in messages %}{{ m.content }}{% endfor %}:", "no place for tools"), (no_calls, "formats")]
    {
        let model = chain(template, ":", &words);
        let server = Server::start_on(&SERVER, model.path(), &[]);
        let reply = server.post(CHAT, &request(&json!({})));
        let error = &reply.body["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!("tools")), "{error}");
        assert!(error["message"].as_str().expect("a text").contains(word), "{error}");
        assert_eq!(server.post(CHAT, &request(&json!({"tool_choice": "none"}))).status, 200);
    }
}

/// A template in the style of Gemma 4's, whose markers are special tokens.
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
            // Twice, parted by a penalty on what came before.
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
