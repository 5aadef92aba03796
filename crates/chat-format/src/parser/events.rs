//! The events of a parser: parts of thoughts, of the answer and of calls.

/// A part of a model's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatEvent {
    /// More text of the answer.
    Text(String),
    /// More text of a thought.
    Reasoning(String),
    /// A tool call starts.
    CallStart {
        /// The id that the model wrote, if its format has ids. Models repeat ids, so replace them by unique ones.
        id: Option<String>,
        /// The name of the tool.
        name: String,
    },
    /// More of the arguments of the latest call. Concatenated, they are the text of a JSON object, unless the model did
    /// not finish it.
    Args(String),
    /// The latest call has ended.
    CallEnd,
}

/// A list of events under construction. Consecutive events of one kind are merged.
#[derive(Debug, Clone, Default)]
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

    pub(super) fn call_start(&mut self, id: Option<String>, name: String) {
        self.0.push(ChatEvent::CallStart { id, name });
    }

    pub(super) fn args(&mut self, json: &[u8]) {
        let text = String::from_utf8_lossy(json);
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Args(last)) => last.push_str(&text),
            _ => self.0.push(ChatEvent::Args(text.into_owned())),
        }
    }

    pub(super) fn call_end(&mut self) {
        self.0.push(ChatEvent::CallEnd);
    }

    pub(super) fn append(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub(super) fn into_list(self) -> Vec<ChatEvent> {
        self.0
    }
}
