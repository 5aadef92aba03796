//! Tool calls of a conversation that have no result yet, and a check of its tools. Invariant: pure.

use chat_format::{Message, Role, ToolCall, ToolChoice, Tools};

use crate::chat::start::AnswerTools;
use crate::engine::{Engine, RequestOptions};
use crate::error::Result;

/// The calls of the latest answer that have no result yet.
pub(super) fn open(messages: &[Message]) -> Vec<ToolCall> {
    let results = messages.iter().rev().take_while(|message| message.role == Role::Tool);
    let answered: Vec<_> = results.map(|result| &result.tool_call_id).collect();
    let answer = messages.iter().rev().find(|message| message.role != Role::Tool);
    let calls = answer.map_or(&[][..], |answer| answer.tool_calls.as_slice());
    calls.iter().filter(|call| !answered.contains(&&call.id)).cloned().collect()
}

/// Replaces the pictures of a message with a line of text.
pub(super) fn without_pictures(message: &mut Message) {
    for part in std::mem::take(&mut message.parts) {
        if !message.parts.is_empty() {
            message.push_text("\n");
        }
        message.push_text(
            part.text().unwrap_or("[a picture was left out, because this model cannot read it here]"),
        );
    }
}

/// Fails if the model cannot call the tools, or not with the required constraint.
pub(super) fn check(engine: &Engine, tools: &Tools, options: &RequestOptions) -> Result<()> {
    if tools.list().is_empty() {
        return Ok(());
    }
    let answer = AnswerTools { tools, choice: &ToolChoice::Auto, is_single: false };
    let constraint = answer.constraint(engine, options.constraint.as_ref())?.or(options.constraint.clone());
    engine.request(vec![0], &RequestOptions { constraint, is_message: true, ..options.clone() })?;
    Ok(())
}
