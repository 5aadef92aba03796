//! Reads the messages of a request strictly, merges consecutive messages of one role, and matches calls with results.

use std::collections::HashSet;

use chat_format::{Part, Role, ToolCall, Tools};
use mlx_json::Value;

use super::block::{self, Block, BlockWithPath};
use crate::error::ApiError;
use crate::field_value::kind;
use crate::fields::{Fields, field_group};
use crate::protocol::openai::message::MAX_MESSAGES;

field_group! {
    /// One message of a conversation.
    #[schema(examples(json!({"role": "user", "content": "Why is the sky blue?"})))]
    pub(crate) struct InputMessage {
        /// The author: user, assistant, or system for later instructions.
        #[schema(required = true, value_type = String, pattern = "^(user|assistant|system)$")]
        pub(crate) role: String,
        /// A text, or a list of blocks. Users may send text, image (base64), tool_result, document and search_result; the assistant text, thinking,
        /// redacted_thinking and tool_use; the system text.
        #[schema(required = true, value_type = String)]
        pub(crate) content: Value,
    }
}

/// The prefix of system prompt blocks that clients write for Anthropic's servers. Such a block differs between sessions, so it would change the
/// start of every prompt.
const ANTHROPIC_PREFIX: &str = "x-anthropic-";

/// Consecutive messages of one role, which form one turn.
struct Turn {
    role: Role,
    path: String,
    blocks: Vec<BlockWithPath>,
}

/// Reads `system` and `messages`.
pub(super) fn read(
    system: Option<Value>,
    messages: Option<Value>,
    tools: &Tools,
) -> Result<Vec<chat_format::Message>, ApiError> {
    let mut conversation = Conversation::default();
    conversation.messages.extend(system.map(instructions).transpose()?.flatten());
    for turn in turns(messages, tools)? {
        conversation.add(turn)?;
    }
    conversation.expect_results()?;
    Ok(conversation.messages)
}

/// Reads the system prompt, without the blocks for Anthropic's servers.
fn instructions(system: Value) -> Result<Option<chat_format::Message>, ApiError> {
    let is_text = system.as_str().is_some();
    let without_anthropic_block = |text: String| match text.split_once('\n') {
        // Clients that send a string put that block in the first line.
        Some((_, rest)) if is_text && text.starts_with(ANTHROPIC_PREFIX) => rest.to_owned(),
        _ if text.starts_with(ANTHROPIC_PREFIX) => String::new(),
        _ => text,
    };
    let texts = block::texts(system, "system")?.into_iter().map(without_anthropic_block);
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    Ok((!texts.is_empty()).then(|| with_parts(Role::System, texts)))
}

fn turns(messages: Option<Value>, tools: &Tools) -> Result<Vec<Turn>, ApiError> {
    let wrong = |reason: String| Err(ApiError::field("messages", reason));
    let messages = match messages {
        Some(Value::Array(messages)) => messages,
        Some(other) => return wrong(format!("is {}; it must be a list", kind(&other))),
        None => return wrong("is missing; give a list of messages".to_owned()),
    };
    if messages.is_empty() {
        return wrong("is empty; give at least one message".to_owned());
    }
    let blocks = |message: &Value| message["content"].as_array().map_or(1, Vec::len).max(1);
    let count: usize = messages.iter().map(blocks).sum();
    if count > MAX_MESSAGES {
        return wrong(format!("has {count} messages and blocks; at most {MAX_MESSAGES} are allowed"));
    }
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in messages.into_iter().enumerate() {
        let turn = read_one(index, message, tools)?;
        match turns.last_mut().filter(|last| last.role == turn.role && turn.role != Role::System) {
            Some(last) => last.blocks.extend(turn.blocks),
            None => turns.push(turn),
        }
    }
    Ok(turns)
}

fn read_one(index: usize, message: Value, tools: &Tools) -> Result<Turn, ApiError> {
    let path = format!("messages.{index}");
    let mut fields = Fields::nested(&path, message)?;
    let given = InputMessage::read(&mut fields)?;
    let role = match given.role.as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some(_) => return Err(ApiError::field(fields.name("role"), "must be user, assistant or system")),
        None => return Err(ApiError::field(fields.name("role"), "is missing")),
    };
    let blocks = block::read(given.content, &fields.name("content"), role, tools)?;
    // An empty answer is valid, since clients send earlier answers back unchanged.
    if blocks.is_empty() && role != Role::Assistant {
        return Err(ApiError::field(fields.name("content"), "is an empty list; give at least one block"));
    }
    fields.end()?;
    Ok(Turn { role, path, blocks })
}

/// The messages read so far.
#[derive(Default)]
struct Conversation {
    messages: Vec<chat_format::Message>,
    latest: Calls,
}

/// The tool calls of the latest answer.
#[derive(Default)]
struct Calls {
    path: String,
    /// The ids of the calls, in order.
    ids: Vec<String>,
    /// The ids of calls without a result.
    open: HashSet<String>,
}

impl Conversation {
    fn add(&mut self, turn: Turn) -> Result<(), ApiError> {
        match turn.role {
            Role::Assistant => {
                self.expect_results()?;
                self.assistant(turn)
            }
            Role::User => self.user(turn.blocks),
            _ => {
                self.messages.push(with_parts(turn.role, turn.blocks.into_iter().filter_map(text)));
                Ok(())
            }
        }
    }

    fn assistant(&mut self, turn: Turn) -> Result<(), ApiError> {
        let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::<ToolCall>::new());
        let mut latest = Calls { path: turn.path, ..Calls::default() };
        for (path, block) in turn.blocks {
            match block {
                Block::Text(text) => texts.push(text),
                Block::Thought(thought) if !thought.is_empty() => thoughts.push(thought),
                Block::Call(call) => {
                    let id = call.id.clone().unwrap_or_default();
                    if !latest.open.insert(id.clone()) {
                        return Err(ApiError::field(path, "`tool_use` ids must be unique"));
                    }
                    latest.ids.push(id);
                    calls.push(call);
                }
                _ => {}
            }
        }
        self.latest = latest;
        // Next to calls, an empty text is the same as no text.
        texts.retain(|text| !text.is_empty());
        if texts.is_empty() && calls.is_empty() {
            texts.push(String::new());
        }
        let reasoning = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
        self.messages.push(chat_format::Message {
            reasoning,
            tool_calls: calls,
            ..with_parts(Role::Assistant, texts)
        });
        Ok(())
    }

    /// Adds a user turn. Tool results come first, whatever is between them.
    fn user(&mut self, blocks: Vec<BlockWithPath>) -> Result<(), ApiError> {
        let mut parts = Vec::new();
        for (path, block) in blocks {
            match block {
                Block::Result { id, parts } => {
                    if !self.latest.open.remove(&id) {
                        return Err(unexpected(path, &id));
                    }
                    let message = chat_format::Message { parts, ..chat_format::Message::new(Role::Tool, "") };
                    self.messages.push(chat_format::Message { tool_call_id: Some(id), ..message });
                }
                Block::Image(image) => parts.push(Part::Image(image)),
                other => parts.extend(text((path, other)).map(Part::Text)),
            }
        }
        self.expect_results()?;
        if !parts.is_empty() {
            self.messages.push(chat_format::Message { parts, ..chat_format::Message::user("") });
        }
        Ok(())
    }

    /// Rejects calls without a result, in the words of the API.
    fn expect_results(&self) -> Result<(), ApiError> {
        let Calls { path, ids, open } = &self.latest;
        if open.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = ids.iter().filter(|id| open.contains(*id)).map(String::as_str).collect();
        let ids = ids.join(", ");
        let reason = format!(
            "`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        );
        Err(ApiError::field(path, reason))
    }
}

fn unexpected(path: String, id: &str) -> ApiError {
    let reason = format!(
        "unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
    );
    ApiError::field(path, reason)
}

fn text((_, block): BlockWithPath) -> Option<String> {
    if let Block::Text(text) = block { Some(text) } else { None }
}

fn with_parts(role: Role, texts: impl IntoIterator<Item = String>) -> chat_format::Message {
    let parts = texts.into_iter().map(Part::Text).collect();
    chat_format::Message { parts, ..chat_format::Message::new(role, "") }
}

#[cfg(test)]
mod tests;
