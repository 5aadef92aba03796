//! Tests of the order of events, and that a stream equals the whole response.

use mlx_core::engine::{Timings, Usage};
use mlx_tests::model_folder;

use super::*;

fn meta() -> AnswerMeta {
    let tokenizer = chat_format::text::Tokenizer::load(&model_folder("llama-f32")).expect("a tokenizer");
    AnswerMeta {
        model: "tiny".into(),
        seed: 7,
        created: 1,
        exactness: "sampling",
        profile: None,
        dropped: None,
        max_tokens: None,
        prompts: Vec::new(),
        choices: 1,
        tokenizer,
    }
}

fn writer() -> Writer {
    let custom = json!({"type": "custom", "name": "patch"});
    let function = json!({"type": "function", "name": "tide"});
    let namespace = json!({"type": "namespace", "name": "sea", "tools": [function]});
    let tools = RequestTools::read(Some(json!([custom, namespace]).into()), None, None).expect("valid");
    let request = EchoedRequest { id: "resp_x".into(), echo: Map::new(), tools, logprobs: false };
    Writer::new(request, meta())
}

fn call(index: usize, name: Option<&str>, arguments: &str) -> Delta {
    let head = name.map(|name| ("unused".to_owned(), name.to_owned()));
    Delta { calls: vec![CallDelta { index, head, arguments: arguments.into() }], ..Delta::default() }
}

fn deltas(reason: &EndReason) -> Vec<Delta> {
    let content = |text: &str| Delta { content: text.into(), ..Delta::default() };
    let usage = Usage { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5, ..Usage::default() };
    let end = End { reason: reason.clone(), usage, timings: Timings::default(), reasoning_tokens: 2 };
    vec![
        Delta { reasoning: "hm".into(), ..Delta::default() },
        content("a"),
        content("b"),
        call(0, Some("sea__tide"), ""),
        call(0, None, "{\"a\":"),
        call(0, None, "1}"),
        call(1, Some("patch"), "{\"input\":\"x\\ny\"}"),
        Delta { end: Some(end), ..Delta::default() },
    ]
}

fn stream(reason: &EndReason) -> Vec<Value> {
    let mut writer = writer();
    let mut events = writer.opening();
    events.extend(deltas(reason).into_iter().flat_map(|delta| writer.delta(delta)));
    events.extend(writer.closing());
    let event = |bytes: &Bytes| {
        let text = std::str::from_utf8(bytes).expect("text");
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let data: Value = serde_json::from_str(lines[2].strip_prefix("data: ").expect("data")).expect("json");
        assert_eq!(lines[0].strip_prefix("event: "), data["type"].as_str());
        assert_eq!(lines[1].strip_prefix("id: "), Some(data["sequence_number"].to_string().as_str()));
        data
    };
    events.iter().map(event).collect()
}

#[test]
fn events_come_in_the_order_of_the_protocol() {
    let events = stream(&EndReason::ToolCalls);
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().expect("a name").trim_start_matches("response."))
        .collect();
    let expected = "created in_progress \
        output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done \
        output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done \
        output_item.added function_call_arguments.delta function_call_arguments.delta function_call_arguments.done output_item.done \
        output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done \
        completed";
    assert_eq!(names, expected.split_ascii_whitespace().collect::<Vec<_>>());
    let indexes: Vec<u64> = events.iter().filter_map(|event| event["output_index"].as_u64()).collect();
    assert!(indexes.is_sorted() && indexes.last() == Some(&3), "{indexes:?}");
}

#[test]
fn a_stream_and_a_whole_response_are_equal() {
    for (reason, status) in [(EndReason::ToolCalls, "completed"), (EndReason::Length, "incomplete")] {
        let events = stream(&reason);
        let mut streamed = events.last().expect("an end")["response"].clone();
        let mut full: Value =
            serde_json::from_slice(&writer().into_json(vec![deltas(&reason)])).expect("json");
        for response in [&mut streamed, &mut full] {
            response["completed_at"].take();
        }
        assert_eq!(streamed, full);
        assert_eq!(full["status"], status);
        let output = full["output"].as_array().expect("items");
        let kinds: Vec<&str> = output.iter().filter_map(|item| item["type"].as_str()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call", "custom_tool_call"]);
        assert_eq!((&output[2]["namespace"], &output[2]["name"]), (&json!("sea"), &json!("tide")));
        assert_eq!((&output[2]["arguments"], &output[3]["input"]), (&json!("{\"a\":1}"), &json!("x\ny")));
        assert_eq!(full["usage"]["input_tokens_details"]["cached_tokens"], 4);
        let done: Vec<&Value> = events
            .iter()
            .filter(|event| event["type"] == "response.output_item.done")
            .map(|event| &event["item"])
            .collect();
        assert_eq!(done, output.iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_failure_ends_the_open_item() {
    let mut writer = writer();
    writer.opening();
    writer.delta(Delta { content: "a".into(), ..Delta::default() });
    let events = writer.failure(&ApiError::failed("the device is gone"));
    let last = String::from_utf8_lossy(events.last().expect("an end")).into_owned();
    assert!(last.starts_with("event: response.failed"), "{last}");
    assert!(last.contains("the device is gone") && last.contains("\"text\":\"a\""), "{last}");
}
