//! The markers within an answer or a thought.

use super::input::Input;
use crate::format::{AnswerFormat, CallFormat, Pattern, SPECIAL};

/// The meaning of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Opens a thought.
    Open,
    /// An opening tag that is part of the answer's text.
    Mention,
    /// Closes a thought.
    Close,
    /// Ends a turn.
    End,
    /// Opens a section of calls.
    Section,
    /// Opens a call.
    Call,
    /// Removed from the output.
    Silent,
}

/// The number of bytes before a marker, and the marker with its length.
pub(super) type Found = (usize, Option<(Mark, usize)>);

/// The markers of a format.
pub(super) struct Marks<'a> {
    pub(super) format: &'a AnswerFormat,
    pub(super) calls: Option<&'a CallFormat>,
    /// True if calls were constrained. Then a call without its section marker is text, and a call in a thought is part
    /// of the thought.
    pub(super) needs_section: bool,
}

impl<'a> Marks<'a> {
    /// Searches for the first marker within an answer. Returns `None` if the format has no markers.
    ///
    /// A tag that is not a special token opens thoughts only at the start, so that an answer can mention tags.
    pub(super) fn find_in_answer(&self, input: &Input) -> Option<Found> {
        let tags = self.format.thoughts.as_ref();
        let open = tags.map(|tags| &tags.open.pattern);
        let open = open.map(|open| (open, if is_special(open) { Mark::Open } else { Mark::Mention }));
        let close = tags.map(|tags| (&tags.close.pattern, Mark::Close));
        let of_family = self.calls.map_or(&[][..], |calls| &calls.syntax().silent);
        let silent = self.format.silent.iter().chain(of_family).map(|marker| (marker, Mark::Silent));
        let marks: Vec<_> = open
            .into_iter()
            .chain(close.filter(|(close, _)| !is_special(close)))
            .chain(self.ends())
            .chain(self.openers())
            .chain(silent)
            .collect();
        (!marks.is_empty()).then(|| find(input, &marks))
    }

    /// Searches for the first marker within a thought. Calls in a thought are never constrained by a schema.
    pub(super) fn find_in_thought(&self, input: &Input) -> Found {
        let close = self.close().map(|close| (close, Mark::Close));
        let openers = self.openers().filter(|_| !self.needs_section);
        // The last of several equal patterns wins: Solar Open closes thoughts with a text that also ends a turn.
        let marks: Vec<_> = self.ends().chain(openers).chain(close).collect();
        find(input, &marks)
    }

    /// Returns the marker that closes a thought.
    pub(super) fn close(&self) -> Option<&'a Pattern> {
        self.format.thoughts.as_ref().map(|tags| &tags.close.pattern)
    }

    /// Returns the markers that may follow the last part of an answer.
    pub(super) fn closing(&self) -> impl Iterator<Item = &'a Pattern> {
        self.format.ends.iter().chain(self.close())
    }

    /// Returns the markers that open calls.
    pub(super) fn openers(&self) -> impl Iterator<Item = (&'a Pattern, Mark)> {
        let syntax = self.calls.map(CallFormat::syntax);
        let section = syntax.and_then(|syntax| syntax.section.as_ref()?.0.first());
        let call = syntax.and_then(|syntax| syntax.call_opener());
        let call = call.filter(|_| section.is_none() || !self.needs_section);
        section.map(|open| (open, Mark::Section)).into_iter().chain(call.map(|open| (open, Mark::Call)))
    }

    fn ends(&self) -> impl Iterator<Item = (&'a Pattern, Mark)> {
        self.format.ends.iter().map(|end| (end, Mark::End))
    }
}

fn is_special(pattern: &Pattern) -> bool {
    pattern.first() == Some(&SPECIAL)
}

fn find(input: &Input, marks: &[(&Pattern, Mark)]) -> Found {
    let patterns: Vec<&Pattern> = marks.iter().map(|(pattern, _)| *pattern).collect();
    let (length, hit) = input.find(&patterns);
    (length, hit.map(|which| (marks[which].1, patterns[which].len())))
}
