//! Tests of writing answers: the order of events, and that streams and whole answers are equal.

use chat_format::text::Tokenizer;
use mlx_core::engine::{Timings, Usage};
use mlx_tests::model_folder;
use serde_json::{Value, json};

use super::*;
use crate::answer::PromptPart;
use crate::delta::CallDelta;
use crate::protocol::messages::signature;

fn meta() -> AnswerMeta {
    AnswerMeta {
        model: "tiny".into(),
        seed: 1,
        created: 0,
        exactness: "sampling-exact",
        profile: None,
        dropped: None,
        max_tokens: Some(50),
        prompts: vec![PromptPart { ids: vec![1; 30], echo: String::new() }],
        choices: 1,
        tokenizer: Tokenizer::load(&model_folder("llama-f32")).expect("it loads"),
    }
}

fn thought(text: &str) -> Delta {
    Delta { reasoning: text.into(), ..Delta::default() }
}

fn text(text: &str) -> Delta {
    Delta { content: text.into(), ..Delta::default() }
}

fn call(index: usize, name: Option<&str>, arguments: &str) -> Delta {
    let head = name.map(|name| (format!("id{index}"), name.to_owned()));
    Delta { calls: vec![CallDelta { index, head, arguments: arguments.into() }], ..Delta::default() }
}

fn end(reason: EndReason, completion_tokens: usize) -> Delta {
    let usage = Usage { prompt_tokens: 30, cached_tokens: 20, completion_tokens, ..Usage::default() };
    let timings = Timings::default();
    Delta { end: Some(End { reason, usage, timings, reasoning_tokens: 3 }), ..Delta::default() }
}

/// Returns the deltas of thinking, text and two calls. The second call has no arguments.
fn all_kinds() -> Vec<Delta> {
    let calls =
        [call(0, Some("add"), ""), call(0, None, "{\"a\":"), call(0, None, " 1}"), call(1, Some("stop"), "")];
    [thought("H"), thought("m"), text("Let me "), text("see.")]
        .into_iter()
        .chain(calls)
        .chain([end(EndReason::ToolCalls, 12)])
        .collect()
}

fn message_json(display: Display, deltas: Vec<Delta>) -> Value {
    let bytes = Writer::new(display, meta()).into_json(vec![deltas]);
    without_id(serde_json::from_slice(&bytes).expect("json"))
}

fn without_id(mut message: Value) -> Value {
    let id = message.as_object_mut().and_then(|message| message.remove("id")).expect("an id");
    assert!(id.as_str().is_some_and(|id| id.starts_with("msg_") && id.len() == 28), "{id}");
    message
}

fn events(display: Display, deltas: Vec<Delta>) -> Vec<Value> {
    let mut writer = Writer::new(display, meta());
    let mut all = writer.opening();
    all.extend(deltas.into_iter().flat_map(|delta| writer.delta(delta)));
    all.extend(writer.closing());
    all.iter().map(|bytes| read_event(bytes)).collect()
}

fn read_event(bytes: &[u8]) -> Value {
    let event = std::str::from_utf8(bytes).expect("text");
    let (name, data) = event.split_once('\n').expect("two lines");
    let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("json");
    assert_eq!(Some(name), data["type"].as_str().map(|kind| format!("event: {kind}")).as_deref());
    data
}

/// Assembles the events of a stream into a message, as clients do.
fn assembled(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut inputs: Vec<String> = Vec::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!(index, inputs.len());
                message["content"].as_array_mut().expect("blocks").push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let delta = event["delta"].as_object().expect("a delta");
                for (key, more) in delta.iter().filter(|(key, _)| *key != "type") {
                    let more = more.as_str().expect("text");
                    if key == "partial_json" {
                        inputs[index] += more;
                    } else {
                        let so_far = message["content"][index][key].as_str().expect("text").to_owned();
                        message["content"][index][key] = json!(so_far + more);
                    }
                }
            }
            "message_delta" => {
                let delta = event["delta"].as_object().expect("a delta").clone();
                message.as_object_mut().expect("an object").extend(delta);
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    for (index, input) in inputs.iter().enumerate().filter(|(_, input)| !input.is_empty()) {
        message["content"][index]["input"] = serde_json::from_str(input).expect("json");
    }
    without_id(message)
}

#[test]
fn events_come_in_the_order_of_the_api() {
    let events = events(Display::Text, all_kinds());
    let short = |event: &Value| {
        let kind = event["type"].as_str().expect("a type");
        let detail = event["content_block"]["type"].as_str().or(event["delta"]["type"].as_str());
        match (event["index"].as_u64(), detail) {
            (Some(index), Some(detail)) => format!("{kind} {index} {detail}"),
            (Some(index), None) => format!("{kind} {index}"),
            _ => kind.to_owned(),
        }
    };
    let order: Vec<String> = events.iter().map(short).collect();
    assert_eq!(
        order,
        [
            "message_start",
            "content_block_start 0 thinking",
            "content_block_delta 0 thinking_delta",
            "content_block_delta 0 thinking_delta",
            "content_block_delta 0 signature_delta",
            "content_block_stop 0",
            "content_block_start 1 text",
            "content_block_delta 1 text_delta",
            "content_block_delta 1 text_delta",
            "content_block_stop 1",
            "content_block_start 2 tool_use",
            "content_block_delta 2 input_json_delta",
            "content_block_delta 2 input_json_delta",
            "content_block_stop 2",
            "content_block_start 3 tool_use",
            "content_block_stop 3",
            "message_delta",
            "message_stop",
        ]
    );
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["input_tokens"], 30);
    let opened = json!({"type": "tool_use", "id": "toolu_id0", "name": "add", "input": {}});
    assert_eq!(events[10]["content_block"], opened);
}

#[test]
fn streamed_equals_whole() {
    let later_text =
        vec![call(0, Some("add"), "{}"), text("and"), thought("Hm"), text("so"), end(EndReason::EndToken, 9)];
    for deltas in [
        all_kinds as fn() -> Vec<Delta>,
        || vec![end(EndReason::EndToken, 1)],
        || vec![text("a"), end(EndReason::Length, 50)],
    ] {
        for display in [Display::Text, Display::Omitted] {
            assert_eq!(assembled(&events(display, deltas())), message_json(display, deltas()));
        }
    }
    let kinds: Vec<Value> = message_json(Display::Text, later_text)["content"]
        .as_array()
        .expect("blocks")
        .iter()
        .map(|block| block["type"].clone())
        .collect();
    assert_eq!(kinds, ["tool_use", "text", "thinking", "text"]);
}

#[test]
fn a_whole_message_has_every_field() {
    let message = message_json(Display::Text, all_kinds());
    let usage = json!({
        "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 20, "output_tokens": 12,
        "output_tokens_details": {"thinking_tokens": 3},
    });
    let content = json!([
        {"type": "thinking", "thinking": "Hm", "signature": signature::plain()},
        {"type": "text", "text": "Let me see.", "citations": null},
        {"type": "tool_use", "id": "toolu_id0", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_id1", "name": "stop", "input": {}},
    ]);
    let expected = json!({
        "type": "message", "role": "assistant", "model": "tiny", "content": content,
        "stop_reason": "tool_use", "stop_sequence": null, "usage": usage,
    });
    assert_eq!(message, expected);
}

#[test]
fn withheld_thoughts_are_in_the_signature() {
    let block = json!({"type": "thinking", "thinking": "", "signature": signature::carrying("Hm")});
    assert_eq!(message_json(Display::Omitted, all_kinds())["content"][0], block);
    let mut writer = Writer::new(Display::Omitted, meta());
    writer.delta(thought("a"));
    assert!(writer.delta(thought("b")).is_empty());
    writer.last_event = Instant::now().checked_sub(MAX_SILENCE * 2).expect("the machine runs for longer");
    assert_eq!(
        writer.delta(thought("c")).iter().map(|event| read_event(event)).collect::<Vec<_>>(),
        [json!({"type": "ping"})]
    );
}

#[test]
fn an_answer_says_why_it_ended() {
    for (reason, tokens, expected, sequence) in [
        (EndReason::EndToken, 5, "end_turn", Value::Null),
        (EndReason::StopString("END".into()), 5, "stop_sequence", json!("END")),
        (EndReason::ToolCalls, 5, "tool_use", Value::Null),
        (EndReason::Length, 50, "max_tokens", Value::Null),
        (EndReason::Length, 49, "model_context_window_exceeded", Value::Null),
    ] {
        let message = message_json(Display::Text, vec![text("a"), end(reason, tokens)]);
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(expected), &sequence));
    }
}

#[test]
fn a_call_that_the_limit_cuts_keeps_its_text() {
    let message = message_json(
        Display::Text,
        vec![call(0, Some("add"), "{\"a\": 1, \"te"), end(EndReason::Length, 50)],
    );
    assert_eq!(message["content"][0]["input"], json!({"unparsed_arguments": "{\"a\": 1, \"te"}));
}

#[test]
fn a_stream_that_fails_ends_with_an_error() {
    let mut writer = Writer::new(Display::Text, meta());
    let events = writer.failure(&ApiError::failed("out of memory"));
    let expected = json!({"type": "error", "error": {"type": "api_error", "message": "out of memory"}});
    assert_eq!(events.iter().map(|event| read_event(event)).collect::<Vec<_>>(), [expected]);
    let [event] = writer.failure(&ApiError::shutting_down()).try_into().expect("one event");
    assert_eq!(read_event(&event)["error"]["type"], "overloaded_error");
}
