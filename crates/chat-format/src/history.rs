//! Converts the calls and results of earlier answers to the form that a model's template expects. Invariant: pure
//! functions, so that the prompts of one conversation share their prefixes.

use mlx_json::{Map, Value};

use super::format::{CallFormat, Ids, WrittenCall};
use super::message::{Message, Role, ToolCall};
use super::part::Part;
use super::tool_support::ToolSupport;

/// The letters and digits of ids.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The argument for a text that is not a JSON object.
const UNREADABLE: &str = "unparsed_arguments";

/// A call without its result, or a result without its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallError {
    /// The index of the message.
    pub message: usize,
    /// The invalid field.
    pub field: &'static str,
    /// The problem.
    pub why: String,
}

/// Returns an error for a call without its result or a result without its call. Results follow the message with their
/// calls, before the next assistant message.
pub fn check_calls(messages: &[Message]) -> Result<(), ToolCallError> {
    let mut open: Vec<(usize, &str)> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            Role::Assistant => {
                expect_none(&open)?;
                open =
                    message.tool_calls.iter().filter_map(|call| Some((index, call.id.as_deref()?))).collect();
            }
            Role::Tool => {
                let Some(id) = message.tool_call_id.as_deref() else { continue };
                let Some(place) = open.iter().position(|(_, other)| *other == id) else {
                    let why = format!("is {id:?}, but no earlier call without a result has this id");
                    return Err(ToolCallError { message: index, field: "tool_call_id", why });
                };
                open.remove(place);
            }
            _ => {}
        }
    }
    expect_none(&open)
}

fn expect_none(open: &[(usize, &str)]) -> Result<(), ToolCallError> {
    let Some((message, id)) = open.first() else { return Ok(()) };
    let why =
        format!("holds the call {id:?} without a result; add a message of role tool with this tool_call_id");
    Err(ToolCallError { message: *message, field: "tool_calls", why })
}

/// Returns the conversation in the form that a model's template expects.
pub(super) fn prepared(messages: &[Message], support: &ToolSupport) -> Vec<Message> {
    let mut prepared = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if first.tool_calls.len() > 1 && !support.is_parallel() {
            let results = after.iter().take_while(|message| message.role == Role::Tool).count();
            prepared.extend(one_by_one(first, &after[..results]));
            rest = &after[results..];
        } else {
            prepared.push(first.clone());
        }
    }
    with_ids(&mut prepared, support.calls().ids());
    if !support.writes_calls() {
        for message in &mut prepared {
            into_content(message, support.calls());
        }
    }
    prepared
}

/// Replaces arguments that are not objects by objects, for templates that access their fields. Returns `None` if there
/// are none.
pub(super) fn with_objects(messages: &[Message]) -> Option<Vec<Message>> {
    let is_text = |call: &ToolCall| object(&call.arguments).is_none();
    if !messages.iter().flat_map(|message| &message.tool_calls).any(is_text) {
        return None;
    }
    let mut messages = messages.to_vec();
    for call in messages.iter_mut().flat_map(|message| &mut message.tool_calls) {
        call.arguments = Value::Object(arguments(call)).to_string();
    }
    Some(messages)
}

/// Splits an answer with several calls into answers with one call and its result each.
fn one_by_one(answer: &Message, results: &[Message]) -> Vec<Message> {
    let mut split = Vec::new();
    for (index, call) in answer.tool_calls.iter().enumerate() {
        let (parts, reasoning) =
            if index == 0 { (answer.parts.clone(), answer.reasoning.clone()) } else { (Vec::new(), None) };
        split.push(Message { parts, reasoning, tool_calls: vec![call.clone()], ..answer.clone() });
        split.extend(results.iter().filter(|result| result.tool_call_id == call.id).cloned());
    }
    let is_called = |result: &Message| answer.tool_calls.iter().any(|call| call.id == result.tool_call_id);
    split.extend(results.iter().filter(|result| !is_called(result)).cloned());
    split
}

fn with_ids(messages: &mut [Message], ids: Ids) {
    if ids == Ids::AsGiven {
        return;
    }
    let mut count = 0;
    // The old and new ids of the latest answer's calls.
    let mut current: Vec<(Option<String>, String)> = Vec::new();
    for message in messages {
        if !message.tool_calls.is_empty() {
            current.clear();
        }
        for call in &mut message.tool_calls {
            let id = match ids {
                Ids::NameAndIndex => format!("functions.{}:{count}", call.name),
                _ => nine_digits(call.id.as_deref().unwrap_or_default(), count),
            };
            count += 1;
            current.push((call.id.replace(id.clone()), id));
        }
        if message.tool_call_id.is_some()
            && let Some((_, id)) = current.iter().find(|(old, _)| *old == message.tool_call_id)
        {
            message.tool_call_id = Some(id.clone());
        }
    }
}

/// Returns an id of nine letters and digits that depends only on the given id, or on the position of a call without
/// one.
fn nine_digits(id: &str, place: usize) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let text = if id.is_empty() { place.to_string() } else { id.to_owned() };
    let mut hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    let mut digit = || {
        let digit = DIGITS[(hash % 62) as usize];
        hash /= 62;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect()
}

/// Writes the calls of an answer into its content.
fn into_content(message: &mut Message, format: &CallFormat) {
    if message.tool_calls.is_empty() {
        return;
    }
    let calls = std::mem::take(&mut message.tool_calls);
    let all: Vec<Map> = calls.iter().map(arguments).collect();
    let written = calls.iter().zip(&all).map(|(call, arguments)| WrittenCall {
        id: call.id.as_deref().unwrap_or_default(),
        name: &call.name,
        arguments,
    });
    let text = format.write(&written.collect::<Vec<_>>());
    message.parts = vec![Part::Text(message.text() + &text)];
}

fn arguments(call: &ToolCall) -> Map {
    object(&call.arguments)
        .unwrap_or_else(|| Map::from_iter([(UNREADABLE.to_owned(), call.arguments.as_str().into())]))
}

fn object(arguments: &str) -> Option<Map> {
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    mlx_json::parse(arguments.as_bytes()).ok()?.into_object()
}

#[cfg(test)]
mod tests;
