//! What a model family writes around thoughts and answers. Chosen once, when a model folder is opened, from its template
//! and vocabulary.
//!
//! Formats of tool calls will be rows beside these: see [`super::ChatEvent::ToolCall`].

mod preamble;
mod tables;
mod thinking;

use std::sync::Arc;

pub use thinking::{Effort, Thinking};

use crate::text::{ChatTemplate, Tokenizer};
use tables::{HARMONY, THOUGHT_TAGS};

/// The format of a model's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputFormat(Arc<Kind>);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// All text is the answer.
    #[default]
    Plain,
    /// Tags around thoughts.
    Tags(ThoughtTags),
    /// Messages on named channels, as gpt-oss writes them.
    Channels(Channels),
}

/// The tags around a thought.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ThoughtTags {
    pub(super) open: Marker,
    /// A word after the opening tag that is no part of the thought; often empty.
    pub(super) label: &'static str,
    pub(super) close: Marker,
}

/// A piece of text with a meaning of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) text: &'static str,
    /// Set if it is a special token. Then it never appears in the text, and a text that reads like it is only text.
    pub(super) special: Option<u32>,
}

impl Marker {
    fn of(text: &'static str, tokenizer: &Tokenizer) -> Self {
        Self { text, special: tokenizer.id(text).filter(|id| tokenizer.is_special(*id)) }
    }

    /// The text to search for; empty if the marker is a special token.
    pub(super) fn searched(self) -> &'static str {
        if self.special.is_some() { "" } else { self.text }
    }
}

/// The special tokens of channels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) start: u32,
    pub(super) channel: u32,
    pub(super) constrain: Option<u32>,
    pub(super) message: u32,
    /// Tokens that end a message.
    pub(super) ends: Vec<u32>,
}

impl OutputFormat {
    /// The format in which all text is the answer.
    pub fn plain() -> Self {
        Self::default()
    }

    /// The format of the model with this template and vocabulary.
    pub(crate) fn detect(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        if let Some(channels) = Channels::find(tokenizer) {
            return Self(Arc::new(Kind::Channels(channels)));
        }
        let of_template = || {
            let template = template?;
            THOUGHT_TAGS.iter().find(|(_, _, close)| template.mentions(close))
        };
        let of_vocabulary = || {
            let has = |tag: &str| tokenizer.id(tag).is_some();
            THOUGHT_TAGS.iter().find(|(open, _, close)| has(open) && has(close))
        };
        let Some(&(open, label, close)) = of_template().or_else(of_vocabulary) else { return Self::plain() };
        let (open, close) = (Marker::of(open, tokenizer), Marker::of(close, tokenizer));
        Self(Arc::new(Kind::Tags(ThoughtTags { open, label, close })))
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether this token has a meaning of its own and no text.
    pub(super) fn is_marker(&self, token: u32) -> bool {
        match self.kind() {
            Kind::Plain => false,
            Kind::Tags(tags) => [tags.open.special, tags.close.special].contains(&Some(token)),
            Kind::Channels(channels) => {
                let Channels { start, channel, constrain, message, ends } = channels;
                [*start, *channel, *message].contains(&token)
                    || *constrain == Some(token)
                    || ends.contains(&token)
            }
        }
    }
}

impl Channels {
    /// The tokens of a vocabulary that has all that are necessary.
    fn find(tokenizer: &Tokenizer) -> Option<Self> {
        let special = |text: &str| tokenizer.id(text).filter(|id| tokenizer.is_special(*id));
        let ends: Vec<u32> = HARMONY.ends.iter().filter_map(|end| special(end)).collect();
        Some(Self {
            start: special(HARMONY.start)?,
            channel: special(HARMONY.channel)?,
            constrain: special(HARMONY.constrain),
            message: special(HARMONY.message)?,
            ends: Some(ends).filter(|ends| !ends.is_empty())?,
        })
    }
}

#[cfg(test)]
impl OutputFormat {
    pub(super) fn tags(open: Marker, label: &'static str, close: Marker) -> Self {
        Self(Arc::new(Kind::Tags(ThoughtTags { open, label, close })))
    }

    pub(super) fn channels(channels: Channels) -> Self {
        Self(Arc::new(Kind::Channels(channels)))
    }
}
