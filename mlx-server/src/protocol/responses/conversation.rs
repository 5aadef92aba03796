//! Converts items to the messages of a conversation. Invariant: the conversion is pure, so that the prompts of one conversation share prefixes.

use chat_format::{Message, Part, Role, ToolCall};

use super::item::{Arguments, Item};
use super::tools::model_arguments;
use crate::protocol::tools::qualified;

/// Returns the messages of a conversation, with the instructions first.
pub(crate) fn messages(instructions: Option<&str>, items: &[Item]) -> Vec<Message> {
    let mut messages: Vec<Message> = instructions.map(Message::system).into_iter().collect();
    let mut turn = Turn::default();
    for item in items {
        match item {
            Item::Message { role: Role::Assistant, parts } => {
                if !turn.calls.is_empty() {
                    turn.end(&mut messages);
                }
                turn.parts.extend(parts.iter().cloned());
            }
            Item::Reasoning(text) => {
                if !turn.parts.is_empty() || !turn.calls.is_empty() {
                    turn.end(&mut messages);
                }
                turn.reasoning.push_str(text);
            }
            Item::Call { call_id, name, namespace, arguments } => {
                turn.calls.push(call(call_id, namespace.as_deref(), name, arguments));
            }
            Item::Message { role, parts } => {
                turn.end(&mut messages);
                messages.push(Message { parts: parts.clone(), ..Message::new(*role, "") });
            }
            Item::Output { call_id, parts } => {
                turn.end(&mut messages);
                let name = name_of(&messages, call_id);
                let tool_call_id = Some(call_id.clone());
                let parts = parts.clone();
                messages.push(Message { parts, tool_call_id, name, ..Message::new(Role::Tool, "") });
            }
        }
    }
    turn.end(&mut messages);
    messages
}

fn call(call_id: &str, namespace: Option<&str>, name: &str, arguments: &Arguments) -> ToolCall {
    let (id, name) = (Some(call_id.to_owned()), qualified(namespace, name));
    ToolCall { id, name, arguments: model_arguments(arguments) }
}

/// Returns the name of the tool that a call used.
fn name_of(messages: &[chat_format::Message], call_id: &str) -> Option<String> {
    let mut calls = messages.iter().rev().flat_map(|message| &message.tool_calls);
    calls.find(|call| call.id.as_deref() == Some(call_id)).map(|call| call.name.clone())
}

/// An assistant message under construction.
#[derive(Default)]
struct Turn {
    reasoning: String,
    parts: Vec<Part>,
    calls: Vec<ToolCall>,
}

impl Turn {
    /// Adds the message, unless it is empty. Drops reasoning without text or calls after it, since no template supports that.
    fn end(&mut self, messages: &mut Vec<Message>) {
        let Self { reasoning, parts, calls } = std::mem::take(self);
        if parts.is_empty() && calls.is_empty() {
            return;
        }
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        messages.push(Message { parts, reasoning, tool_calls: calls, ..Message::assistant("") });
    }
}

#[cfg(test)]
mod tests {
    use Role::{Assistant, Developer, System, Tool, User};

    use super::*;

    fn text_item(role: Role, text: &str) -> Item {
        Item::Message { role, parts: vec![Part::Text(text.into())] }
    }

    fn called(id: &str) -> Item {
        let arguments = Arguments::Json("{}".into());
        Item::Call { call_id: id.into(), name: "add".into(), namespace: Some("n".into()), arguments }
    }

    fn result(id: &str) -> Item {
        Item::Output { call_id: id.into(), parts: vec![Part::Text("3".into())] }
    }

    #[test]
    fn thoughts_text_and_calls_of_a_turn_are_one_message() {
        let items = [
            text_item(Role::Developer, "d"),
            text_item(Role::User, "q"),
            Item::Reasoning("hm".into()),
            text_item(Role::Assistant, "so"),
            called("1"),
            called("2"),
            result("1"),
            result("2"),
            Item::Reasoning("ah".into()),
            text_item(Role::Assistant, "3"),
        ];
        let messages = messages(Some("be"), &items);
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [System, Developer, User, Assistant, Tool, Tool, Assistant]);
        let calls = &messages[3];
        assert_eq!(
            (calls.text().as_str(), calls.reasoning.as_deref(), calls.tool_calls.len()),
            ("so", Some("hm"), 2)
        );
        assert_eq!(messages[4].name.as_deref(), Some("n__add"));
        assert_eq!(messages[6].reasoning.as_deref(), Some("ah"));
    }

    #[test]
    fn a_longer_conversation_begins_with_the_shorter_one() {
        let items = [
            text_item(Role::User, "q"),
            Item::Reasoning("hm".into()),
            called("1"),
            result("1"),
            text_item(Role::Assistant, "3"),
            text_item(Role::User, "r"),
        ];
        for cut in [1, 4, 5] {
            let short = messages(None, &items[..cut]);
            assert!(messages(None, &items).starts_with(&short), "{cut}");
        }
    }
}
