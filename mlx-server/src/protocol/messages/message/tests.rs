//! Tests of reading conversations: equivalent content is read the same way, and errors name the invalid field.

use crate::fields::value as json;

use super::*;
use crate::protocol::messages::signature;

fn tools() -> Tools {
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {}}});
    let tool = chat_format::Tool { is_deferred: true, ..chat_format::Tool::read(tool).expect("a tool") };
    Tools::new(vec![tool]).expect("one tool")
}

fn conversation(messages: &Value) -> Result<Vec<chat_format::Message>, ApiError> {
    super::read(None, Some(messages.clone()), &tools())
}

fn system(system: &Value) -> Vec<chat_format::Message> {
    let user = json!([{"role": "user", "content": "Go"}]);
    super::read(Some(system.clone()), Some(user), &tools()).expect("valid")
}

/// Returns a conversation with a call of `add` and this content after it.
fn with_result(content: &Value) -> Value {
    json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "add", "input": {}}]},
        {"role": "user", "content": content},
    ])
}

fn result(id: &str, content: &Value) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

#[test]
fn texts_and_blocks_are_the_same() {
    let block = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}, "citations": null});
    for role in ["user", "assistant", "system"] {
        let turn = |content: Value| json!([{"role": "user", "content": "Hi"}, {"role": role, "content": content}, {"role": "user", "content": "a"}]);
        assert_eq!(conversation(&turn(json!("b"))), conversation(&turn(json!([block("b")]))), "{role}");
    }
    assert_eq!(system(&json!("Be brief.")), system(&json!([block("Be brief.")])));
    assert_eq!(system(&json!("")), system(&json!([])));
}

#[test]
fn what_the_system_prompt_says_to_other_servers_is_dropped() {
    let line = "x-anthropic-billing-header: cc_version=2.1.330.930;";
    let block = |text: &str| json!({"type": "text", "text": text});
    let clean = system(&json!([block("Be brief."), block("Be kind.")]));
    assert_eq!(system(&json!([block(line), block("Be brief."), block("Be kind.")])), clean);
    assert_eq!(system(&json!(format!("{line}\nBe brief."))), system(&json!("Be brief.")));
    assert_eq!(clean[0].text(), "Be brief.\nBe kind.");
}

#[test]
fn instructions_stay_where_they_are() {
    let messages = conversation(&json!([
        {"role": "user", "content": "Go"},
        {"role": "system", "content": "Later"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "On"},
    ]));
    let roles: Vec<Role> = messages.expect("valid").iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::System, Role::Assistant, Role::User]);
}

#[test]
fn turns_become_messages() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "add", "input": {"b": 1, "a": [2]}, "caller": {"type": "direct"}});
    let failed =
        json!({"type": "tool_result", "tool_use_id": "2", "content": "no such file", "is_error": true});
    let messages = conversation(&json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "I look."},
            call("1"),
        ]},
        // Some clients send one turn as several messages, with one block each.
        {"role": "assistant", "content": [call("2")]},
        {"role": "user", "content": [result("1", &json!([{"type": "text", "text": "3"}, {"type": "text", "text": "4"}]))]},
        {"role": "user", "content": [{"type": "text", "text": "Quick!"}, failed]},
    ]));
    let arguments = r#"{"b":1,"a":[2]}"#.to_owned();
    let called =
        |id: &str| ToolCall { id: Some(id.into()), name: "add".into(), arguments: arguments.clone() };
    let answered = |id: &str, text: &str| chat_format::Message {
        tool_call_id: Some(id.into()),
        ..chat_format::Message::new(Role::Tool, text)
    };
    let expected = vec![
        chat_format::Message::user("Go"),
        chat_format::Message {
            reasoning: Some("Hm".into()),
            tool_calls: vec![called("1"), called("2")],
            ..chat_format::Message::assistant("I look.")
        },
        answered("1", "3\n4"),
        answered("2", "Error: no such file"),
        chat_format::Message::user("Quick!"),
    ];
    assert_eq!(messages, Ok(expected));
}

#[test]
fn withheld_thoughts_come_back_and_empty_answers_are_accepted() {
    let signature = signature::carrying("Low tide");
    let messages = conversation(&json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": signature}, {"type": "text", "text": "Yes"}]},
        {"role": "user", "content": "On"},
        {"role": "assistant", "content": []},
        {"role": "user", "content": "On"},
    ]));
    let messages = messages.expect("valid");
    assert_eq!(messages[1].reasoning.as_deref(), Some("Low tide"));
    assert_eq!((messages[3].text().as_str(), messages[3].parts.len()), ("", 1));
}

#[test]
fn documents_results_of_searches_and_tools_become_text() {
    let found = json!({"type": "search_result", "source": "a.txt", "title": "A", "content": [{"type": "text", "text": "tide"}], "citations": {"enabled": true}});
    let document =
        |source: Value| json!({"type": "document", "title": "T", "context": "C", "source": source});
    let reference = json!({"type": "tool_reference", "tool_name": "add"});
    let texts: Vec<String> = conversation(&with_result(&json!([
        result("1", &json!([found, reference])),
        document(json!({"type": "text", "media_type": "text/plain", "data": "D"})),
        document(json!({"type": "content", "content": "E"})),
    ])))
    .expect("valid")
    .iter()
    .skip(2)
    .map(chat_format::Message::text)
    .collect();
    assert_eq!(
        texts,
        [
            "<search_result source=\"a.txt\" title=\"A\">\ntide\n</search_result>\n{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {}}}",
            "<document title=\"T\">\nC\nD\n</document>\n<document title=\"T\">\nC\nE\n</document>",
        ]
    );
}

#[test]
fn calls_and_results_are_matched_in_the_words_of_the_api() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "add", "input": {}});
    let message_of = |role: &str, blocks: Value| json!({"role": role, "content": blocks});
    let go = message_of("user", json!("Go"));
    let none = json!("");
    for (messages, param, word) in [
        (
            json!([
                go,
                message_of("assistant", json!([call("one"), call("two")])),
                message_of("user", json!([result("one", &none)]))
            ]),
            "messages.1",
            "immediately after: two.",
        ),
        (
            json!([go, message_of("assistant", json!([call("one")])), message_of("user", json!("Go on"))]),
            "messages.1",
            "immediately after: one.",
        ),
        (json!([go, message_of("assistant", json!([call("one")]))]), "messages.1", "immediately after: one."),
        (
            json!([message_of("user", json!([result("zero", &none)]))]),
            "messages.0.content.0",
            "unexpected `tool_use_id`",
        ),
        (
            json!([
                go,
                message_of("assistant", json!([call("one")])),
                message_of("user", json!([result("one", &none), result("one", &none)]))
            ]),
            "messages.2.content.1",
            "blocks: one.",
        ),
        (
            json!([go, message_of("assistant", json!([call("one"), call("one")]))]),
            "messages.1.content.1",
            "unique",
        ),
    ] {
        let error = conversation(&messages).expect_err(param);
        assert_eq!(error.param(), Some(param), "{messages}");
        assert!(error.message().contains(word), "{}", error.message());
    }
}

#[test]
fn pictures_stand_where_they_were_sent() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({
        "type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"},
        "cache_control": {"type": "ephemeral"},
    });
    let picture = || Part::Image(chat_format::Image::file(vec![1, 2, 3]));
    let messages = conversation(&json!([{"role": "user", "content": [image, text("a"), image]}]));
    assert_eq!(messages.expect("valid")[0].parts, [picture(), Part::Text("a".into()), picture()]);
    let results = [
        (json!([text("a"), text("b"), image]), vec![Part::Text("a\nb".into()), picture()]),
        (json!([image]), vec![picture()]),
    ];
    for (content, parts) in results {
        let messages = conversation(&with_result(&json!([result("1", &content)])));
        assert_eq!(messages.expect("valid")[2].parts, parts);
    }
}

#[test]
fn what_cannot_be_understood_is_named() {
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let of_host = json!({"type": "image", "source": {"type": "url", "url": "https://a.b/c"}});
    let of_file = json!({"type": "image", "source": {"type": "file", "file_id": "1"}});
    let pdf = json!({"type": "document", "source": {"type": "base64", "data": ""}});
    for (messages, param) in [
        (json!([]), "messages"),
        (json!({}), "messages"),
        (json!(["a"]), "messages.0"),
        (json!([{"role": "wizard", "content": "a"}]), "messages.0.role"),
        (json!([{"content": "a"}]), "messages.0.role"),
        (json!([{"role": "user"}]), "messages.0.content"),
        (json!([{"role": "user", "content": "a", "mood": 1}]), "messages.0.mood"),
        (user(json!(5)), "messages.0.content"),
        (user(json!([])), "messages.0.content"),
        (user(json!(["a"])), "messages.0.content.0"),
        (user(json!([{"text": "a"}])), "messages.0.content.0.type"),
        (user(json!([{"type": "text"}])), "messages.0.content.0.text"),
        (user(json!([{"type": "text", "text": "a", "mood": 1}])), "messages.0.content.0.mood"),
        (
            user(json!([{"type": "tool_use", "id": "1", "name": "a", "input": {}}])),
            "messages.0.content.0.type",
        ),
        (user(json!([{"type": "text", "text": "a"}, image])), "messages.0.content.1.source.data"),
        (user(json!([of_host])), "messages.0.content.0.source.url"),
        (user(json!([of_file])), "messages.0.content.0.source.type"),
        (user(json!([pdf])), "messages.0.content.0.source.type"),
        (with_result(&json!([result("1", &json!([image]))])), "messages.2.content.0.content.0.source.data"),
        (
            with_result(&json!([result("1", &json!([{"type": "tool_reference", "tool_name": "sub"}]))])),
            "messages.2.content.0.content.0.tool_name",
        ),
        (with_result(&json!([result("1", &json!(5))])), "messages.2.content.0.content"),
    ] {
        assert_eq!(conversation(&messages).expect_err(param).param(), Some(param), "{messages}");
    }
    let many = user(json!(vec![json!(5); MAX_MESSAGES + 1]));
    assert_eq!(conversation(&many).expect_err("too many").param(), Some("messages"));
    assert_eq!(super::read(None, None, &tools()).expect_err("missing").param(), Some("messages"));
}

/// Checks that matching calls with results takes linear time, with the maximum number of both.
#[test]
fn many_calls_are_matched_soon() {
    let ids = || (0..MAX_MESSAGES / 2 - 1).map(|id| id.to_string());
    let calls: Vec<Value> =
        ids().map(|id| json!({"type": "tool_use", "id": id, "name": "add", "input": {}})).collect();
    let results: Vec<Value> = ids().rev().map(|id| result(&id, &json!("1"))).collect();
    let begin = std::time::Instant::now();
    let messages = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]);
    assert_eq!(conversation(&messages).expect("valid").len(), MAX_MESSAGES / 2 + 1);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}
