//! Tests of the lines of a stream, and that together they equal the whole answer.

use mlx_core::engine::{Timings, Usage};
use mlx_tests::model_folder;
use serde_json::Value;

use super::*;

fn writer() -> Writer {
    let tokenizer = chat_format::text::Tokenizer::load(&model_folder("llama-f32")).expect("a tokenizer");
    let meta = AnswerMeta {
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
    };
    Writer::new(Endpoint::Chat, meta)
}

fn deltas(reason: EndReason) -> Vec<Delta> {
    let call = |index: usize, name: Option<&str>, arguments: &str| {
        let head = name.map(|name| ("id".to_owned(), name.to_owned()));
        let calls = vec![CallDelta { index, head, arguments: arguments.into() }];
        Delta { calls, ..Delta::default() }
    };
    let usage = Usage { prompt_tokens: 9, completion_tokens: 5, ..Usage::default() };
    let timings = Timings { queue: 0.5, prefill: 1.0, decode: 2.0 };
    vec![
        Delta { reasoning: "hm".into(), ..Delta::default() },
        Delta { content: "a".into(), ..Delta::default() },
        call(0, Some("add"), "{\"a\":"),
        call(0, None, "1}"),
        call(1, Some("cut"), "{\"b"),
        Delta { end: Some(End { reason, usage, timings, reasoning_tokens: 2 }), ..Delta::default() },
    ]
}

#[test]
fn lines_are_the_whole_answer_in_parts() {
    let mut writer_of_lines = writer();
    let mut lines: Vec<Bytes> =
        deltas(EndReason::Length).into_iter().flat_map(|delta| writer_of_lines.delta(delta)).collect();
    lines.extend(writer_of_lines.closing());
    let lines: Vec<Value> =
        lines.iter().map(|line| serde_json::from_slice(line).expect("a line is JSON")).collect();
    let full: Value =
        serde_json::from_slice(&writer().into_json(vec![deltas(EndReason::Length)])).expect("json");
    let joined =
        |name: &str| -> String { lines.iter().filter_map(|line| line["message"][name].as_str()).collect() };
    assert_eq!((joined("content"), joined("thinking")), ("a".to_owned(), "hm".to_owned()));
    let calls: Vec<Value> =
        lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().cloned().collect();
    let expected = json!([
        {"function": {"index": 0, "name": "add", "arguments": {"a": 1}}},
        {"function": {"index": 1, "name": "cut", "arguments": {"unparsed_arguments": "{\"b"}}},
    ]);
    assert_eq!(json!(calls), expected);
    let message = json!({"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": expected});
    assert_eq!(full["message"], message);
    let (last, before) = lines.split_last().expect("lines");
    assert!(before.iter().all(|line| line["done"] == false));
    for answer in [last, &full] {
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!((&answer["prompt_eval_count"], &answer["eval_count"]), (&json!(9), &json!(5)));
        assert_eq!(answer["total_duration"], 3_500_000_000_u64);
    }
}
