//! The markers that a model family writes around thoughts, answers and tool calls. They are detected from the template
//! and vocabulary when a model is opened.

mod calls;
mod families;
mod family;
mod grammar;
mod pattern;
pub(super) mod preamble;
mod shape;
mod tables;
mod thinking;
mod trigger;
mod writer;

use std::sync::Arc;

pub use calls::CallFormat;
pub(super) use calls::{CallSyntax, Step, TaggedSyntax};
pub(super) use family::{Envelope, Ids, KindOfValue, Part};
pub(super) use pattern::{Literal, Pattern, Piece, SPECIAL, SPECIAL_BYTES, pieces_of, special_bytes};
pub use thinking::{Effort, Thinking};
pub(super) use writer::{WrittenCall, spaced_json};

use crate::{ChatTemplate, text::Tokenizer};
use pattern::Compiler;
use tables::{CHANNEL_ROWS, ChannelRow, THOUGHT_TAGS, TURN_ENDS, ThoughtRow};

/// The format of a model's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputFormat(Arc<Kind>);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An answer, preceded by thoughts in tags.
    Answer(AnswerFormat),
    /// Messages on named channels or to named recipients, as in gpt-oss.
    Channels(Channels),
}

impl Default for Kind {
    fn default() -> Self {
        Self::Answer(AnswerFormat::default())
    }
}

/// The markers of an answer. Without markers, all text is the answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerFormat {
    pub(super) thoughts: Option<ThoughtTags>,
    /// Markers around the answer that are removed.
    pub(super) silent: Vec<Pattern>,
    /// Texts that end a turn.
    pub(super) ends: Vec<Pattern>,
    /// The special tokens in all of these markers.
    specials: Vec<u32>,
}

/// The tags around a thought.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ThoughtTags {
    pub(super) open: Marker,
    /// A word after the opening tag that is not part of the thought. Often empty.
    pub(super) label: &'static str,
    pub(super) close: Marker,
}

/// A marker in the output. A special token never matches ordinary text that is spelled like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) text: &'static str,
    pub(super) pattern: Pattern,
}

/// The markers of channels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Channels {
    row: &'static ChannelRow,
    pub(super) start: Pattern,
    pub(super) channel: Option<Pattern>,
    pub(super) constrain: Option<Pattern>,
    pub(super) message: Pattern,
    /// The ends of a message. The first one ends a thought.
    pub(super) ends: Vec<Pattern>,
    /// The headers of a thought and of the answer, after the role.
    thought: Pattern,
    answer: Pattern,
    /// The special tokens in all of these markers.
    specials: Vec<u32>,
}

impl OutputFormat {
    /// Returns the format without markers, in which all text is the answer.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Returns the format of the model with this template and vocabulary.
    pub fn detect(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        let has_channels = |row: &&ChannelRow| {
            row.are_in(tokenizer)
                && (row.channel.is_some() || template.is_some_and(|template| row.are_mentioned(template)))
        };
        if let Some(row) = CHANNEL_ROWS.iter().find(has_channels) {
            return Self::of_channels(row, Some(tokenizer));
        }
        let of_vocabulary = || {
            let has = |tag: &str| tokenizer.id(tag).is_some();
            THOUGHT_TAGS.iter().find(|row| has(row.open) && has(row.close))
        };
        let row = template.and_then(row_of_template).or_else(of_vocabulary);
        Self::of_answer(row, Some(tokenizer))
    }

    /// Returns the format of models with this template, for text in which special tokens are spelled out.
    pub fn spelled(template: &ChatTemplate) -> Self {
        match CHANNEL_ROWS.iter().find(|row| row.are_mentioned(template)) {
            Some(row) => Self::of_channels(row, None),
            None => Self::of_answer(row_of_template(template), None),
        }
    }

    /// Returns the format of models with these tool calls, for text in which special tokens are spelled out.
    pub fn of_calls(calls: &CallFormat) -> Self {
        match CHANNEL_ROWS.iter().find(|row| row.calls == calls.name()) {
            Some(row) => Self::of_channels(row, None),
            None => Self::of_answer(THOUGHT_TAGS.iter().find(|row| row.open == calls.thoughts()), None),
        }
    }

    /// Returns the same format for text in which special tokens are spelled out.
    #[must_use]
    pub fn spelled_out(&self) -> Self {
        match self.kind() {
            Kind::Channels(channels) => Self::of_channels(channels.row, None),
            Kind::Answer(answer) => {
                let open = answer.thoughts.as_ref().map(|tags| tags.open.text);
                Self::of_answer(THOUGHT_TAGS.iter().find(|row| Some(row.open) == open), None)
            }
        }
    }

    /// Returns true if the model marks its thoughts.
    pub fn has_thoughts(&self) -> bool {
        match self.kind() {
            Kind::Answer(answer) => answer.thoughts.is_some(),
            Kind::Channels(_) => true,
        }
    }

    /// Returns the name of the call format if messages have channels.
    pub(super) fn calls_on_channels(&self) -> Option<&'static str> {
        match self.kind() {
            Kind::Answer(_) => None,
            Kind::Channels(channels) => Some(channels.row.calls),
        }
    }

    fn of_answer(row: Option<&ThoughtRow>, vocabulary: Option<&Tokenizer>) -> Self {
        let mut compiler = Compiler::new(vocabulary);
        let thoughts = row.map(|row| {
            let (open, close) = (Marker::of(row.open, &mut compiler), Marker::of(row.close, &mut compiler));
            ThoughtTags { open, label: row.label, close }
        });
        let silent = row.map_or(&[][..], |row| row.silent);
        let silent = silent.iter().map(|marker| compiler.pattern(marker)).collect();
        // A special token has no text, and a model does not write a marker that its vocabulary lacks.
        let has_text = |end: &&&str| {
            let id = |tokenizer: &Tokenizer| tokenizer.id(end).is_some_and(|id| !tokenizer.is_special(id));
            vocabulary.is_none_or(id)
        };
        let ends = TURN_ENDS.iter().filter(has_text).map(|end| end.as_bytes().into()).collect();
        Self(Arc::new(Kind::Answer(AnswerFormat { thoughts, silent, ends, specials: compiler.specials })))
    }

    fn of_channels(row: &'static ChannelRow, vocabulary: Option<&Tokenizer>) -> Self {
        let mut compiler = Compiler::new(vocabulary);
        let mut pattern = |marker: &&str| compiler.pattern(marker);
        let (start, message) = (pattern(&row.start), pattern(&row.message));
        let (channel, constrain) =
            (row.channel.as_ref().map(&mut pattern), row.constrain.as_ref().map(&mut pattern));
        let (thought, answer) = (pattern(&row.thought), pattern(&row.answer));
        let ends = row.ends.iter().map(pattern).collect();
        let specials = compiler.specials;
        let channels = Channels { row, start, channel, constrain, message, ends, thought, answer, specials };
        Self(Arc::new(Kind::Channels(channels)))
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Returns true if this token is a marker, which has no text.
    pub(super) fn is_marker(&self, token: u32) -> bool {
        match self.kind() {
            Kind::Answer(answer) => answer.specials.contains(&token),
            Kind::Channels(channels) => channels.specials.contains(&token),
        }
    }
}

fn row_of_template(template: &ChatTemplate) -> Option<&'static ThoughtRow> {
    THOUGHT_TAGS.iter().find(|row| template.mentions(row.sign))
}

impl Marker {
    fn of(text: &'static str, compiler: &mut Compiler) -> Self {
        Self { text, pattern: compiler.pattern(text) }
    }
}

impl ChannelRow {
    /// Returns true if a vocabulary has all required special tokens.
    fn are_in(&self, tokenizer: &Tokenizer) -> bool {
        let has = |text: &&str| tokenizer.id(text).is_some_and(|id| tokenizer.is_special(id));
        [self.start, self.message].iter().chain(&self.channel).all(has) && self.ends.iter().any(has)
    }

    fn are_mentioned(&self, template: &ChatTemplate) -> bool {
        self.signs.iter().all(|sign| template.mentions(sign))
    }
}

impl CallFormat {
    /// Returns the channels that carry its calls.
    fn channels(&self) -> Option<&'static ChannelRow> {
        CHANNEL_ROWS.iter().find(|row| row.calls == self.name())
    }

    /// Returns true if each call is a separate message.
    pub(super) fn is_on_channels(&self) -> bool {
        self.channels().is_some()
    }

    /// Returns the call format inside a message to a tool, if the message contains more than the arguments.
    pub(super) fn body(&self) -> Option<Self> {
        self.channels()?.body.and_then(Self::named)
    }
}

/// Returns the texts that end a turn.
#[cfg(test)]
pub(super) fn turn_ends() -> impl Iterator<Item = &'static str> {
    TURN_ENDS.into_iter()
}

#[cfg(test)]
impl OutputFormat {
    /// Returns a format with these tags. Some of them are special tokens.
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
        let thoughts = Some(ThoughtTags { open: marker(open), label, close: marker(close) });
        Self(Arc::new(Kind::Answer(AnswerFormat { thoughts, specials, ..AnswerFormat::default() })))
    }

    /// Returns gpt-oss's channels with these special tokens: start, channel, message, end.
    pub(super) fn channels(tokens: [u32; 4]) -> Self {
        let [start, channel, message, end] = tokens.map(|id| Pattern::from(special_bytes(id)));
        let spelled = |text: &str| Pattern::from(text.as_bytes());
        let row = &CHANNEL_ROWS[0];
        Self(Arc::new(Kind::Channels(Channels {
            row,
            start,
            channel: Some(channel),
            constrain: row.constrain.map(spelled),
            message,
            ends: vec![end],
            thought: spelled(row.thought),
            answer: spelled(row.answer),
            specials: tokens.to_vec(),
        })))
    }
}
