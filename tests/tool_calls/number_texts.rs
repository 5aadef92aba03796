//! Numbers keep their spelling: from a client's schemas and variables to the prompt, from the model to the client, and back into the next
//! prompt, in all four APIs.

use mlx_json::Value;
use mlx_tests::server::Server;
use mlx_tests::successors::chain;
use serde_json::json;

use super::{PROMPT_END, SERVER, TEMPLATE};

const FLOAT: &str = "0.9452706955539223";
const LONG: &str = "123456789012345678901234567890";
/// A template writes 1.5, as Python does.
const SPELLED: &str = "1.50";

/// A call with numbers that are split between tokens.
const WORDS: [&str; 6] = [
    "<tool_call>\n{\"name\": \"add\", ",
    "\"arguments\": {\"x\": 0.9452",
    "706955539223, \"n\": 12345678901234567890",
    "1234567890, \"s\": ",
    "1.50}}",
    "\n</tool_call>",
];
/// The number of words that the next prompt repeats unchanged.
const REPEATED: usize = 4;

const USER: &str = r#"[{"role": "user", "content": "Go"}]"#;

/// One of the APIs: its path, a tool in its format, and its own request fields.
const APIS: [(&str, &str, &str); 4] = [
    (
        "/v1/chat/completions",
        r#"{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}"#,
        r#""messages": TURNS"#,
    ),
    (
        "/v1/responses",
        r#"{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA}"#,
        r#""store": true, "input": TURNS"#,
    ),
    (
        "/v1/messages",
        r#"{"name": "add", "description": "Adds.", "input_schema": SCHEMA}"#,
        r#""max_tokens": 50, "messages": TURNS"#,
    ),
    (
        "/api/chat",
        r#"{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}"#,
        r#""options": {"temperature": 0}, "messages": TURNS"#,
    ),
];

fn schema() -> String {
    let x = format!(r#"{{"type": "number", "minimum": {FLOAT}, "multipleOf": 1e-7}}"#);
    let n = format!(r#"{{"type": "integer", "default": {LONG}}}"#);
    format!(r#"{{"type": "object", "properties": {{"x": {x}, "n": {n}, "s": {{"type": "number"}}}}}}"#)
}

fn request(index: usize, turns: &str, is_streamed: bool) -> String {
    let (path, tool, more) = APIS[index];
    let (tool, more) = (tool.replace("SCHEMA", &schema()), more.replace("TURNS", turns));
    let greedy = if path == "/api/chat" { "" } else { r#""temperature": 0, "# };
    format!(r#"{{{greedy}"stream": {is_streamed}, "tools": [{tool}], {more}}}"#)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Returns the turns of a conversation in which the answer's call has a result.
fn with_result(path: &str, answer: &Value) -> String {
    let user = r#"{"role": "user", "content": "Go"}"#;
    match path {
        "/v1/chat/completions" => {
            let call = &list(&list(answer, "choices")[0]["message"], "tool_calls")[0];
            let id = &call["id"];
            format!(
                r#"[{user}, {{"role": "assistant", "content": null, "tool_calls": [{call}]}}, {{"role": "tool", "tool_call_id": {id}, "content": "7"}}]"#
            )
        }
        "/v1/responses" => {
            let call = list(answer, "output").last().expect("a call");
            let id = &call["call_id"];
            format!(r#"[{user}, {call}, {{"type": "function_call_output", "call_id": {id}, "output": "7"}}]"#)
        }
        "/v1/messages" => {
            let call = list(answer, "content").last().expect("a call");
            let id = &call["id"];
            format!(
                r#"[{user}, {{"role": "assistant", "content": [{call}]}}, {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": {id}, "content": "7"}}]}}]"#
            )
        }
        _ => format!(r#"[{user}, {}, {{"role": "tool", "content": "7"}}]"#, answer["message"]),
    }
}

/// Returns the arguments of a call in the events or lines of a stream.
fn streamed_arguments(stream: &str) -> String {
    let events = stream.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let parts = events.filter_map(|event| mlx_json::parse(event.as_bytes()).ok()).map(|event| {
        let delta = &event["choices"][0]["delta"];
        let chat = delta["tool_calls"][0]["function"]["arguments"].as_str();
        let messages = event["delta"]["partial_json"].as_str();
        let responses =
            event["delta"].as_str().filter(|_| event["type"] == "response.function_call_arguments.delta");
        let ollama = &event["message"]["tool_calls"][0]["function"]["arguments"];
        let ollama = if ollama.is_null() { String::new() } else { ollama.to_string() };
        chat.or(messages).or(responses).map_or(ollama, str::to_owned)
    });
    parts.collect()
}

/// Renders the prompt of these turns.
fn rendered(server: &Server, turns: &str) -> String {
    let tool = APIS[0].1.replace("SCHEMA", &schema());
    let answer =
        server.exchange("/v1/chat/render", &format!(r#"{{"messages": {turns}, "tools": [{tool}]}}"#));
    let answer = mlx_json::parse(answer.as_bytes()).expect("JSON");
    answer["prompt"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn numbers_keep_their_text_from_the_model_to_the_client_and_back() {
    let model = chain(TEMPLATE, PROMPT_END, &WORDS);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    // Chat completions report the tokens of the second prompt; the other APIs have the same prompt and find it cached.
    let mut known = 0;
    for (index, (path, ..)) in APIS.into_iter().enumerate() {
        let first = request(index, USER, false);
        let text = server.exchange(path, &first);
        assert!([FLOAT, LONG, SPELLED].iter().all(|number| text.contains(number)), "{path}: {text}");
        let answer = mlx_json::parse(text.as_bytes()).expect("JSON");
        let turns = with_result(path, &answer);
        if index == 0 {
            let (before, after) = (rendered(&server, USER), rendered(&server, &turns));
            let repeated = WORDS[..REPEATED].concat();
            let answer = after.strip_prefix(&before).unwrap_or_else(|| panic!("{after} after {before}"));
            assert!(answer.starts_with(&repeated), "{answer}");
        }
        let figures = || {
            // The engine reports its counts after the end of an answer.
            server.wait_for("mlx_requests_running", 0);
            (server.figure("mlx_prompt_tokens_total"), server.figure("mlx_cached_tokens_total"))
        };
        let (computed_before, cached_before) = figures();
        let second = server.exchange(path, &request(index, &turns, false));
        let (computed, cached) = figures();
        assert!(second.contains(LONG), "{path}: {second}");
        let cached = cached - cached_before;
        assert!(cached + 1 >= known, "{path}: {cached} of {known} tokens are known");
        known = computed - computed_before + cached;

        let stream = server.exchange(path, &first.replace(r#""stream": false"#, r#""stream": true"#));
        let arguments = mlx_json::parse(streamed_arguments(&stream).as_bytes()).expect(path).to_string();
        assert_eq!(arguments, format!(r#"{{"x":{FLOAT},"n":{LONG},"s":{SPELLED}}}"#), "{path}");
    }
    // A response contains the tools of its request, also when fetched and in its events.
    let response = server.exchange("/v1/responses", &request(1, USER, false));
    let id = mlx_json::parse(response.as_bytes()).expect("JSON")["id"].as_str().expect("an id").to_owned();
    let fetched = server.text(&format!("/v1/responses/{id}"));
    let events = server.text(&format!("/v1/responses/{id}?stream=true"));
    for shown in [&response, &fetched, &events] {
        let default = format!(r#""default":{LONG}"#);
        assert!(shown.contains(&default) && shown.contains(r#""multipleOf":1e-7"#), "{shown}");
    }
}

#[test]
fn a_prompt_has_the_numbers_that_python_would_write() {
    let written = "{{ limit }} {{ share }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
    let model = chain(&format!("{written}{TEMPLATE}"), PROMPT_END, &WORDS);
    let server = Server::start_on(&SERVER, model.path(), &[]);
    let tool = APIS[0].1.replace("SCHEMA", &schema());
    let arguments = json!(format!(r#"{{"a": {LONG}, "b": [1e5, {SPELLED}], "c": {FLOAT}}}"#));
    let call = format!(
        r#"{{"id": "1", "type": "function", "function": {{"name": "add", "arguments": {arguments}}}}}"#
    );
    let turns = format!(
        r#"[{{"role": "user", "content": "Go"}}, {{"role": "assistant", "content": null, "tool_calls": [{call}]}}, {{"role": "tool", "tool_call_id": "1", "content": "7"}}]"#
    );
    let body = format!(
        r#"{{"messages": {turns}, "tools": [{tool}], "chat_template_kwargs": {{"limit": {LONG}, "share": {FLOAT}}}}}"#
    );
    let rendered = server.exchange("/v1/chat/render", &body);
    let rendered = mlx_json::parse(rendered.as_bytes()).expect("JSON");
    let prompt = rendered["prompt"].as_str().unwrap_or_else(|| panic!("{rendered}"));
    for part in [
        format!("{LONG} {FLOAT}"),
        format!(r#""minimum": {FLOAT}, "multipleOf": 1e-07"#),
        format!(r#""default": {LONG}"#),
        format!("{{'a': {LONG}, 'b': [100000.0, 1.5], 'c': {FLOAT}}}"),
        format!(r#"{{"a": {LONG}, "b": [100000.0, 1.5], "c": {FLOAT}}}"#),
    ] {
        assert!(prompt.contains(&part), "{part}: {prompt}");
    }
}
