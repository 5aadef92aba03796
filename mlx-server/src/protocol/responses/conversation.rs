//! Converts items to the messages of a conversation. Invariant: the conversion is pure, so that the prompts of one conversation share prefixes.

use chat_format::{Message, Part, Role, ToolCall};

use super::custom_tool::model_arguments;
use super::item::{Arguments, Item};
use super::mcp_item::McpItem;
use crate::delta::McpCall;
use crate::protocol::tools::qualified;

/// The text for the model instead of a result.
const DECLINED: &str = "The user declined this tool call.";
const UNANSWERED: &str = "The user has not answered whether this call may run.";

/// Returns the messages of a conversation, with the instructions first. `mcp_name` returns the name of a tool of an MCP server for the model.
pub(crate) fn messages(
    instructions: Option<&str>,
    items: &[Item],
    mcp_name: &dyn Fn(&str, &str) -> String,
) -> Vec<Message> {
    let mut messages: Vec<Message> = instructions.map(Message::system).into_iter().collect();
    let mut turn = Turn::default();
    let mut served = 0;
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
            Item::Mcp(item) => {
                let Some((given, result)) = served_call(item, items) else { continue };
                if turn.only_served() {
                    turn.end(&mut messages);
                }
                served += 1;
                let name = mcp_name(&given.label, &given.name);
                turn.add_served(format!("mcp{served}"), name, given.arguments.clone(), result);
            }
            Item::Call { call_id, name, namespace, arguments } => {
                if turn.only_served() {
                    turn.end(&mut messages);
                }
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

/// Returns a call of an MCP server's tool with its result for the model. `None` for items that the model does not see: lists of tools, answers
/// to requests, and requests whose call has run.
fn served_call<'a>(item: &'a McpItem, items: &[Item]) -> Option<(&'a McpCall, Vec<Part>)> {
    match item {
        McpItem::Call { call, result, .. } => Some((call, result.parts())),
        McpItem::Request { id, call } => {
            let has_run =
                |item: &Item| matches!(item, Item::Mcp(McpItem::Call { request: Some(it), .. }) if it == id);
            if items.iter().any(has_run) {
                return None;
            }
            let answer = items.iter().rev().find_map(|item| match item {
                Item::Mcp(McpItem::Response { request, approves: false, reason }) if request == id => {
                    let reason = reason.as_ref().filter(|reason| !reason.is_empty());
                    Some(reason.map_or_else(|| DECLINED.to_owned(), |reason| format!("{DECLINED} {reason}")))
                }
                _ => None,
            });
            Some((call, vec![Part::Text(answer.unwrap_or_else(|| UNANSWERED.to_owned()))]))
        }
        McpItem::Tools { .. } | McpItem::Response { .. } => None,
    }
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
    /// The results of the calls that this server has run.
    results: Vec<Message>,
}

impl Turn {
    /// Adds the message, unless it is empty. Drops reasoning without text or calls after it, since no template supports that.
    fn end(&mut self, messages: &mut Vec<Message>) {
        let Self { reasoning, parts, calls, results } = std::mem::take(self);
        if parts.is_empty() && calls.is_empty() {
            return;
        }
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        messages.push(Message { parts, reasoning, tool_calls: calls, ..Message::assistant("") });
        messages.extend(results);
    }

    /// Returns true if all calls have results, and there is one. The model has seen them before it continued.
    fn only_served(&self) -> bool {
        !self.results.is_empty() && self.results.len() == self.calls.len()
    }

    fn add_served(&mut self, id: String, name: String, arguments: String, parts: Vec<Part>) {
        let (tool_call_id, tool) = (Some(id.clone()), Some(name.clone()));
        self.results.push(Message { parts, tool_call_id, name: tool, ..Message::new(Role::Tool, "") });
        self.calls.push(ToolCall { id: Some(id), name, arguments });
    }
}

#[cfg(test)]
mod tests {
    use Role::{Assistant, Developer, System, Tool, User};

    use super::*;
    use crate::delta::CallResult;

    fn qualified_name(label: &str, tool: &str) -> String {
        qualified(Some(label), tool)
    }

    fn given() -> McpCall {
        McpCall { label: "sea".into(), name: "tide".into(), arguments: "{}".into() }
    }

    fn served(result: &str, request: Option<&str>) -> Item {
        let result = CallResult::Output(vec![Part::Text(result.into())]);
        Item::Mcp(McpItem::Call { call: given(), result, request: request.map(str::to_owned) })
    }

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
        let messages = messages(Some("be"), &items, &qualified_name);
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
            let short = messages(None, &items[..cut], &qualified_name);
            assert!(messages(None, &items, &qualified_name).starts_with(&short), "{cut}");
        }
    }

    #[test]
    fn calls_of_servers_have_their_results_at_once() {
        let request = |id: &str| Item::Mcp(McpItem::Request { id: id.into(), call: given() });
        let response = |id: &str, approves| {
            Item::Mcp(McpItem::Response { request: id.into(), approves, reason: Some("No.".into()) })
        };
        let items = [
            text_item(User, "q"),
            Item::Mcp(McpItem::Tools { label: "sea".into() }),
            Item::Reasoning("hm".into()),
            served("one", None),
            served("two", None),
            called("1"),
            served("three", None),
            result("1"),
            request("a"),
            request("b"),
            request("c"),
            response("a", true),
            response("b", false),
            served("four", Some("a")),
        ];
        let messages = messages(None, &items, &qualified_name);
        let texts: Vec<(Role, String)> =
            messages.iter().map(|message| (message.role, message.text())).collect();
        let tool = |text: &str| (Tool, text.to_owned());
        let assistant = || (Assistant, String::new());
        let expected = [
            (User, "q".to_owned()),
            assistant(),
            tool("one"),
            assistant(),
            tool("two"),
            assistant(),
            tool("three"),
            tool("3"),
            assistant(),
            tool("The user declined this tool call. No."),
            assistant(),
            tool("The user has not answered whether this call may run."),
            assistant(),
            tool("four"),
        ];
        assert_eq!(texts, expected);
        assert_eq!(messages[5].tool_calls.len(), 2, "a call of the client beside one of a server");
        assert_eq!(messages[1].reasoning.as_deref(), Some("hm"));
        assert_eq!(messages[2].name.as_deref(), Some("sea__tide"));
        assert!(chat_format::check_calls(&messages).is_ok());
    }
}
