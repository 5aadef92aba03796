//! Messages on named channels, as gpt-oss writes them: `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`. The
//! header of a message says what its text is. A header that is none is text.

use super::events::Events;
use crate::chat::format::Channels;

/// A longer header is no header.
const LONGEST_HEADER: usize = 128;

/// What stands between two messages of one kind.
const BETWEEN: &str = "\n\n";

/// Where in an answer the parser is.
#[derive(Debug, Clone)]
pub(super) struct ChannelParser {
    stage: Stage,
    /// Whether there has been a thought, and text of the answer.
    has_reasoning: bool,
    has_text: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    Header(Header),
    /// The text of a message: a thought or the answer; whether none of it has come.
    Body {
        is_thought: bool,
        is_new: bool,
    },
    /// After the end of a message.
    Between,
}

#[derive(Debug, Clone, Default)]
struct Header {
    /// All of its text.
    text: String,
    /// The part of it after the channel token.
    channel: Option<String>,
    /// Whether a special token has shown that it is a header.
    is_certain: bool,
    /// After the token that names the form of the content.
    is_constrained: bool,
}

impl Header {
    /// `to=` in a header makes a message the call of a tool. Calls are text until tools are read; all other channels but
    /// `analysis` are for the person, too.
    fn is_thought(&self) -> bool {
        let mut words = self.channel.as_deref().unwrap_or_default().split_whitespace();
        words.next() == Some("analysis") && !self.text.contains("to=")
    }
}

impl ChannelParser {
    /// The prompt usually ends with `<|start|>assistant`, the beginning of a header.
    pub(super) fn new(prompt: &str) -> Self {
        let open = prompt.rsplit_once("<|start|>").map_or("", |(_, open)| open);
        let (header, body) =
            open.split_once("<|message|>").map_or((open, None), |(it, body)| (it, Some(body)));
        let channel = header.split_once("<|channel|>").map(|(_, channel)| channel.to_owned());
        // What the prompt holds of the header is no text of the answer.
        let header = Header { is_certain: channel.is_some(), channel, ..Header::default() };
        let stage = match body {
            None => Stage::Header(header),
            Some(body) if body.contains("<|end|>") => Stage::Header(Header::default()),
            Some(_) => Stage::Body { is_thought: header.is_thought(), is_new: true },
        };
        Self { stage, has_reasoning: false, has_text: false }
    }

    pub(super) fn text(&mut self, text: &str, events: &mut Events) {
        match &mut self.stage {
            Stage::Header(header) => {
                header.text.push_str(text);
                if let Some(channel) = header.channel.as_mut().filter(|_| !header.is_constrained) {
                    channel.push_str(text);
                }
                let is_text = !header.is_certain && header.text.contains('\n');
                if is_text || header.text.len() > LONGEST_HEADER {
                    let text = std::mem::take(&mut header.text);
                    self.body(false, &text, events);
                }
            }
            Stage::Body { is_thought, .. } => {
                let is_thought = *is_thought;
                self.body(is_thought, text, events);
            }
            Stage::Between => self.body(false, text, events),
        }
    }

    pub(super) fn marker(&mut self, token: u32, channels: &Channels, events: &mut Events) {
        if token == channels.start {
            self.give_up_header(events);
            self.stage = Stage::Header(Header { is_certain: true, ..Header::default() });
        } else if token == channels.channel {
            // A model may leave out the beginning of the header.
            if !matches!(self.stage, Stage::Header(_)) {
                self.stage = Stage::Header(Header::default());
            }
            if let Stage::Header(header) = &mut self.stage {
                (header.channel, header.is_certain) = (Some(String::new()), true);
            }
        } else if Some(token) == channels.constrain {
            if let Stage::Header(header) = &mut self.stage {
                (header.is_certain, header.is_constrained) = (true, true);
            }
        } else if token == channels.message {
            if let Stage::Header(header) = &self.stage {
                self.stage = Stage::Body { is_thought: header.is_thought(), is_new: true };
            }
        } else if channels.ends.contains(&token) {
            self.give_up_header(events);
            self.stage = Stage::Between;
        }
    }

    pub(super) fn finish(&mut self, events: &mut Events) {
        self.give_up_header(events);
    }

    /// What may have been a header was none.
    fn give_up_header(&mut self, events: &mut Events) {
        if let Stage::Header(header) = &mut self.stage
            && !header.is_certain
        {
            let text = std::mem::take(&mut header.text);
            self.body(false, &text, events);
        }
    }

    fn body(&mut self, is_thought: bool, text: &str, events: &mut Events) {
        if text.is_empty() {
            return;
        }
        let is_new = !matches!(self.stage, Stage::Body { is_new: false, .. });
        let has_some = if is_thought { &mut self.has_reasoning } else { &mut self.has_text };
        let between = if is_new && std::mem::replace(has_some, true) { BETWEEN } else { "" };
        self.stage = Stage::Body { is_thought, is_new: false };
        if is_thought {
            events.reasoning(between);
            events.reasoning(text);
        } else {
            events.text(between);
            events.text(text);
        }
    }
}
