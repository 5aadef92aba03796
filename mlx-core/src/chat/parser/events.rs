//! What a parser gives: pieces of thoughts, of the answer and of calls.

/// A piece of what a model writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// More of the answer.
    Text(String),
    /// More of a thought.
    Reasoning(String),
    /// More of a call of a tool. No format of calls is read yet, so no parser gives this: calls are text.
    ToolCall(ToolCallDelta),
}

/// More of a call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Which call of the message, from 0.
    pub index: usize,
    /// The name of the tool, in the first piece.
    pub name: Option<String>,
    /// More of the arguments: a growing prefix of one JSON text.
    pub arguments: String,
}

/// Events in the making; neighbours of one kind are one event.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<ChatEvent>);

impl Events {
    pub(super) fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Text(last)) => last.push_str(text),
            _ => self.0.push(ChatEvent::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(ChatEvent::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn into_list(self) -> Vec<ChatEvent> {
        self.0
    }
}
