//! What a model family writes around thoughts, answers and calls of tools. Chosen once, when a model folder is opened, from
//! its template and vocabulary.

mod calls;
mod families;
mod family;
mod grammar;
mod pattern;
mod preamble;
mod shape;
mod tables;
mod thinking;
mod trigger;
mod writer;

use std::sync::Arc;

pub use calls::CallFormat;
pub(super) use calls::{CallSyntax, Step, TaggedSyntax};
pub(super) use family::{Envelope, Ids, KindOfValue, Part};
pub(super) use pattern::{Literal, Pattern, SPECIAL, SPECIAL_BYTES, special_bytes};
pub(super) use preamble::in_constraint;
pub use thinking::{Effort, Thinking};
pub(super) use writer::{WrittenCall, spaced_json};

use crate::text::{ChatTemplate, Tokenizer};
use pattern::Compiler;
use tables::{HARMONY, THOUGHT_TAGS, TURN_ENDS, ThoughtRow};

/// The name of the format of calls on channels.
pub(super) const CHANNELS: &str = "gpt-oss";

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
    /// The special tokens among them.
    specials: Vec<u32>,
}

/// A piece of text with a meaning of its own. A special token never appears in the text, and a text that reads like it is only
/// text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) text: &'static str,
    pub(super) pattern: Pattern,
}

/// The markers of channels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) start: Pattern,
    pub(super) channel: Pattern,
    pub(super) constrain: Pattern,
    pub(super) message: Pattern,
    /// What ends a message.
    pub(super) ends: Vec<Pattern>,
    /// The special tokens among them.
    specials: Vec<u32>,
}

impl OutputFormat {
    /// The format in which all text is the answer.
    pub fn plain() -> Self {
        Self::default()
    }

    /// The format of the model with this template and vocabulary.
    pub(crate) fn detect(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        if Channels::are_in(tokenizer) {
            return Self::of_channels(Some(tokenizer));
        }
        let of_template =
            || template.and_then(|template| THOUGHT_TAGS.iter().find(|row| template.mentions(row.sign)));
        let of_vocabulary = || {
            let has = |tag: &str| tokenizer.id(tag).is_some();
            THOUGHT_TAGS.iter().find(|row| has(row.open) && has(row.close))
        };
        of_template()
            .or_else(of_vocabulary)
            .map_or_else(Self::plain, |row| Self::of_tags(row, Some(tokenizer)))
    }

    /// The format of models with this template, for text in which special tokens are spelled out.
    pub fn spelled(template: &ChatTemplate) -> Self {
        if [HARMONY.channel, HARMONY.message].into_iter().all(|marker| template.mentions(marker)) {
            return Self::of_channels(None);
        }
        let row = THOUGHT_TAGS.iter().find(|row| template.mentions(row.sign));
        row.map_or_else(Self::plain, |row| Self::of_tags(row, None))
    }

    /// The format of models that write calls so, for text in which special tokens are spelled out.
    pub fn of_calls(calls: &CallFormat) -> Self {
        if calls.name() == CHANNELS {
            return Self::of_channels(None);
        }
        let row = THOUGHT_TAGS.iter().find(|row| row.open == calls.thoughts());
        row.map_or_else(Self::plain, |row| Self::of_tags(row, None))
    }

    /// The same format for text in which special tokens are spelled out.
    #[must_use]
    pub fn spelled_out(&self) -> Self {
        match self.kind() {
            Kind::Plain => Self::plain(),
            Kind::Channels(_) => Self::of_channels(None),
            Kind::Tags(tags) => {
                let row = THOUGHT_TAGS.iter().find(|row| row.open == tags.open.text);
                row.map_or_else(Self::plain, |row| Self::of_tags(row, None))
            }
        }
    }

    /// Whether messages stand on channels.
    pub(super) fn has_channels(&self) -> bool {
        matches!(self.kind(), Kind::Channels(_))
    }

    fn of_tags(row: &ThoughtRow, vocabulary: Option<&Tokenizer>) -> Self {
        let mut compiler = Compiler::new(vocabulary);
        let (open, close) = (Marker::of(row.open, &mut compiler), Marker::of(row.close, &mut compiler));
        let tags = ThoughtTags { open, label: row.label, close, specials: compiler.specials };
        Self(Arc::new(Kind::Tags(tags)))
    }

    fn of_channels(vocabulary: Option<&Tokenizer>) -> Self {
        let mut compiler = Compiler::new(vocabulary);
        let ends = HARMONY.ends.iter().map(|end| compiler.pattern(end)).collect();
        let [start, channel, constrain, message] =
            [HARMONY.start, HARMONY.channel, HARMONY.constrain, HARMONY.message]
                .map(|marker| compiler.pattern(marker));
        let specials = compiler.specials;
        Self(Arc::new(Kind::Channels(Channels { start, channel, constrain, message, ends, specials })))
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether this token has a meaning of its own and no text.
    pub(super) fn is_marker(&self, token: u32) -> bool {
        match self.kind() {
            Kind::Plain => false,
            Kind::Tags(tags) => tags.specials.contains(&token),
            Kind::Channels(channels) => channels.specials.contains(&token),
        }
    }
}

impl Marker {
    fn of(text: &'static str, compiler: &mut Compiler) -> Self {
        Self { text, pattern: compiler.pattern(text) }
    }
}

impl Channels {
    /// Whether a vocabulary has all special tokens that are necessary.
    fn are_in(tokenizer: &Tokenizer) -> bool {
        let has = |text: &&str| tokenizer.id(text).is_some_and(|id| tokenizer.is_special(id));
        [HARMONY.start, HARMONY.channel, HARMONY.message].iter().all(has) && HARMONY.ends.iter().any(has)
    }
}

/// An output in which special tokens are spelled out, without the tokens at its end that end a turn.
pub fn without_end(output: &str) -> &str {
    let mut rest = output;
    while let Some(shorter) = TURN_ENDS.iter().find_map(|end| rest.trim_end().strip_suffix(end)) {
        rest = shorter;
    }
    rest
}

#[cfg(test)]
pub(super) use pattern::Piece;

#[cfg(test)]
impl OutputFormat {
    /// Tags of which some are special tokens.
    pub(super) fn tags(
        open: (&'static str, Option<u32>),
        label: &'static str,
        close: (&'static str, Option<u32>),
    ) -> Self {
        let marker = |(text, special): (&'static str, Option<u32>)| {
            let spelled = || text.as_bytes().into();
            Marker { text, pattern: special.map_or_else(spelled, |id| special_bytes(id).into()) }
        };
        let specials = open.1.into_iter().chain(close.1).collect();
        Self(Arc::new(Kind::Tags(ThoughtTags { open: marker(open), label, close: marker(close), specials })))
    }

    /// Channels of these special tokens: start, channel, message, end.
    pub(super) fn channels(tokens: [u32; 4]) -> Self {
        let [start, channel, message, end] = tokens.map(|id| Pattern::from(special_bytes(id)));
        let (constrain, specials) = ((*b"<|constrain|>").into(), tokens.to_vec());
        Self(Arc::new(Kind::Channels(Channels {
            start,
            channel,
            constrain,
            message,
            ends: vec![end],
            specials,
        })))
    }
}
