//! The header of a message, which contains its channel or its recipient.

use crate::format::{Channels, Pattern};

/// The maximum length of a header.
const LONGEST_HEADER: usize = 256;
/// The recipient of thoughts, in formats without channels.
const ITSELF: &str = "self";
/// The recipients of answers.
const PERSON: [&str; 2] = ["user", "assistant"];

/// The header read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Header {
    /// The whole text of the header.
    pub(super) text: String,
    /// The text after the channel token.
    pub(super) channel: Option<String>,
    /// True if a special token proves that it is a header.
    pub(super) is_certain: bool,
    /// True after the token that precedes the content type.
    pub(super) is_constrained: bool,
}

/// The kind of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Addressed {
    Thought,
    Answer,
    /// A message to a tool. `is_function` is true if its name is in the namespace `functions`.
    Tool {
        name: String,
        is_function: bool,
    },
}

/// A marker of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Start,
    Channel,
    Constrain,
    Message,
    End,
}

impl Header {
    /// Returns the header that is open at the end of a prompt, and the text of its message if that has begun.
    pub(super) fn opened(prompt: &str) -> (Self, Option<&str>) {
        let open = prompt.rsplit_once("<|start|>").map_or("", |(_, open)| open);
        let (header, body) =
            open.split_once("<|message|>").map_or((open, None), |(it, body)| (it, Some(body)));
        let (role, channel) = header
            .split_once("<|channel|>")
            .map_or((header, None), |(role, channel)| (role, Some(channel.to_owned())));
        // The beginning of the header, which is in the prompt, is not part of the answer.
        let text = role.split_once("to=").map_or(String::new(), |(_, recipient)| format!("to={recipient}"));
        let is_certain = channel.is_some() || !text.is_empty();
        (Self { text, channel, is_certain, is_constrained: false }, body)
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        if let Some(channel) = self.channel.as_mut().filter(|_| !self.is_constrained) {
            channel.push_str(text);
        }
    }

    /// Returns true if the text cannot be a header.
    pub(super) fn is_text(&self) -> bool {
        !self.is_certain && self.text.contains('\n') || self.text.len() > LONGEST_HEADER
    }

    /// Returns true if the message marker may follow.
    pub(super) fn is_whole(&self) -> bool {
        let text = self.text.trim();
        self.is_certain || self.recipient().is_some() || text.is_empty() || text == "assistant"
    }

    /// Returns the recipient of the message, from any position in the header.
    fn recipient(&self) -> Option<&str> {
        let (_, after) = self.text.split_once("to=")?;
        after.split_whitespace().next()
    }

    /// Returns the kind of the message. If calls are not parsed, messages to tools are thoughts or texts.
    pub(super) fn addressed(&self, reads_calls: bool) -> Addressed {
        let recipient = self.recipient().filter(|recipient| !PERSON.contains(recipient));
        let function = recipient.and_then(|recipient| recipient.strip_prefix("functions."));
        match (recipient, function) {
            (Some(ITSELF), _) => Addressed::Thought,
            (_, Some(name)) if reads_calls && !name.is_empty() => {
                Addressed::Tool { name: name.to_owned(), is_function: true }
            }
            (Some(name), None) if reads_calls => {
                Addressed::Tool { name: name.to_owned(), is_function: false }
            }
            // All other channels are also for the user.
            _ => {
                let channel = self.channel.as_deref().unwrap_or_default();
                let is_thought = channel.split_whitespace().next() == Some("analysis");
                if is_thought { Addressed::Thought } else { Addressed::Answer }
            }
        }
    }
}

/// Returns the markers of messages.
pub(super) fn marks(channels: &Channels) -> Vec<(&Pattern, Mark)> {
    let Channels { start, channel, constrain, message, ends, .. } = channels;
    let channel = channel.iter().map(|channel| (channel, Mark::Channel));
    let constrain = constrain.iter().map(|constrain| (constrain, Mark::Constrain));
    let ends = ends.iter().map(|end| (end, Mark::End));
    [(start, Mark::Start), (message, Mark::Message)]
        .into_iter()
        .chain(channel)
        .chain(constrain)
        .chain(ends)
        .collect()
}
