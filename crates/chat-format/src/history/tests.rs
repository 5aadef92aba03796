//! Tests of earlier calls in all forms that templates expect.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::{ChatTemplate, text::Tokenizer};

fn support(source: &str, format: &str) -> ToolSupport {
    let template = ChatTemplate::from_source(source, serde_json::Map::new()).expect("it compiles");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-f32");
    let tokenizer = Tokenizer::load(&folder).expect("the fixture loads");
    ToolSupport::detect(Some(&template), &tokenizer, Some(format)).expect("it can call tools")
}

fn conversation(calls: usize) -> Vec<Message> {
    let call = |index: usize| ToolCall {
        id: Some(format!("call_{index}")),
        name: "add".into(),
        arguments: if index == 0 { "{\"a\": 1}".into() } else { "no JSON".into() },
    };
    let result = |index: usize| Message {
        tool_call_id: Some(format!("call_{index}")),
        ..Message::new(Role::Tool, format!("result {index}"))
    };
    let calling = Message {
        parts: Vec::new(),
        reasoning: Some("Hm".into()),
        tool_calls: (0..calls).map(call).collect(),
        ..Message::assistant("")
    };
    // Results may come in any order.
    let results = (0..calls).rev().map(result);
    [Message::user("Go"), calling].into_iter().chain(results).chain([Message::assistant("Done")]).collect()
}

const SHOWS_TOOLS: &str = "{{ tools | tojson }}{% for m in messages %}[{{ m.content }}]{% endfor %}";

#[test]
fn calls_and_results_belong_together() {
    let whole = conversation(2);
    assert_eq!(check_calls(&whole), Ok(()));
    let without = |index: usize| {
        let mut messages = whole.clone();
        messages.remove(index);
        check_calls(&messages)
            .map_err(|mistake| (mistake.message, mistake.field, mistake.why.contains("call_")))
    };
    assert_eq!(without(1), Err((1, "tool_call_id", true)));
    assert_eq!(without(2), Err((1, "tool_calls", true)));
    assert_eq!(without(3), Err((1, "tool_calls", true)));
    assert_eq!(without(4), Ok(()));
}

#[test]
fn ids_take_the_form_that_the_template_wants() {
    let of = |format: &str| prepared(&conversation(2), &support(SHOWS_TOOLS, format));
    let nine = of("mistral-nemo");
    // Nemo's calls are part of the content here, and its results keep their ids.
    let ids: Vec<&str> = nine.iter().filter_map(|message| message.tool_call_id.as_deref()).collect();
    assert!(
        ids.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())),
        "{ids:?}"
    );
    assert_ne!(ids[0], ids[1]);
    assert!(nine[1].text().contains(ids[1]), "{}", nine[1].text());
    assert_eq!(nine, of("mistral-nemo"), "the same each time");
    let kimi = of("kimi-k2");
    let ids: Vec<&str> = kimi.iter().filter_map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(ids, ["functions.add:1", "functions.add:0"]);
}

#[test]
fn several_calls_become_turns_of_one_call_where_the_template_takes_one() {
    let one = "{{ tools | tojson }}{% for m in messages %}{% if m.tool_calls %}\
               {% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}{% set f = m.tool_calls[0].function %}\
               <tool_call>{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}</tool_call>\
               {% else %}{{ m.content }}{% endif %}{% endfor %}";
    let messages = prepared(&conversation(2), &support(one, "hermes"));
    let shape: Vec<(Role, usize, Option<&str>)> = messages
        .iter()
        .map(|message| (message.role, message.tool_calls.len(), message.tool_call_id.as_deref()))
        .collect();
    assert_eq!(
        shape,
        [
            (Role::User, 0, None),
            (Role::Assistant, 1, None),
            (Role::Tool, 0, Some("call_0")),
            (Role::Assistant, 1, None),
            (Role::Tool, 0, Some("call_1")),
            (Role::Assistant, 0, None),
        ]
    );
    assert_eq!((messages[1].reasoning.as_deref(), messages[3].reasoning.as_deref()), (Some("Hm"), None));
}

#[test]
fn calls_stand_in_the_content_where_the_template_writes_none() {
    let messages = prepared(&conversation(1), &support(SHOWS_TOOLS, "hermes"));
    let text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    assert_eq!((messages[1].text().as_str(), messages[1].tool_calls.len()), (text, 0));
}

#[test]
fn arguments_that_are_no_object_become_one() {
    assert_eq!(with_objects(&conversation(1)), None);
    let messages = with_objects(&conversation(2)).expect("one call has no object");
    let arguments: serde_json::Value =
        serde_json::from_str(&messages[1].tool_calls[1].arguments).expect("JSON");
    assert_eq!(arguments, json!({"unparsed_arguments": "no JSON"}));
}
