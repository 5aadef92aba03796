//! The text that a model may write before its answer, for constraints that apply only to the answer.

use super::pattern::{Pattern, Piece, SPECIAL, in_grammar, pieces_of};
use super::{AnswerFormat, Channels, Kind, Marker, OutputFormat, ThoughtTags};
use crate::{Marker as Trigger, Preamble, Thoughts};

/// Whitespace between thoughts and answer.
const SPACE: &str = "space: /[ \\t\\r\\n]{1,8}/\n";
/// The text of a thought.
const TEXT: &str = "text: /(?s:.+)/\n";

impl OutputFormat {
    /// Returns the text that may precede the answer to this prompt, with or without the header of the answer's channel.
    /// `None` if there is none.
    pub fn preamble(&self, prompt: &str, with_header: bool) -> Option<Preamble> {
        match self.kind() {
            Kind::Answer(answer) => {
                answer.thoughts.as_ref().map(|tags| tags.preamble(tags.is_open_in(prompt)))
            }
            Kind::Channels(channels) => channels.preamble(prompt, with_header),
        }
    }

    /// Returns the markers of thoughts before the answer to this prompt. `None` if the family has none, or uses
    /// channels.
    pub fn thoughts(&self, prompt: &str) -> Option<Thoughts> {
        let Kind::Answer(AnswerFormat { thoughts: Some(tags), .. }) = self.kind() else { return None };
        Some(Thoughts {
            is_open: tags.is_open_in(prompt),
            open: tags.open.in_constraint(),
            close: tags.close.in_constraint(),
        })
    }
}

impl Marker {
    fn in_constraint(&self) -> Trigger {
        in_constraint(&pieces_of(&self.pattern))
    }
}

/// Converts items to a marker that a constraint waits for.
pub(crate) fn in_constraint(pieces: &[Piece]) -> Trigger {
    pieces.iter().fold(Trigger::default(), |marker, piece| {
        marker.then(match piece {
            Piece::Text(text) => Trigger::text(text),
            Piece::Special(token) => Trigger::special(*token),
        })
    })
}

/// Returns the Lark notation of a pattern.
fn lark(pattern: &Pattern) -> String {
    pieces_of(pattern).iter().map(in_grammar).collect::<Vec<_>>().join(" ")
}

impl ThoughtTags {
    /// Returns true if the prompt ends with an opened thought.
    pub(crate) fn is_open_in(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        end.strip_suffix(self.label).unwrap_or(end).ends_with(self.open.text)
    }

    fn preamble(&self, is_open: bool) -> Preamble {
        let close = lark(&self.close.pattern);
        let thought = match self.close.pattern.first() {
            Some(&SPECIAL) => format!("thought: text? {close}\n{TEXT}"),
            _ => format!("thought[suffix={close}]: /(?s:.*)/\n"),
        };
        let (start, opened) = if is_open {
            ("thought space?", String::new())
        } else {
            ("opened?", format!("opened: space? {} thought space?\n", lark(&self.open.pattern)))
        };
        Preamble { start: start.to_owned(), rules: opened + &thought + SPACE }
    }
}

impl Channels {
    fn preamble(&self, prompt: &str, with_header: bool) -> Option<Preamble> {
        let last = prompt.rsplit_once(self.row.start).map_or("", |(_, last)| last);
        let is_ended = |body: &str| self.row.ends.iter().any(|end| body.contains(end));
        let begun = last.split_once(self.row.message).filter(|(_, body)| !is_ended(body));
        let in_thought = begun.is_some_and(|(header, _)| header.contains(self.row.thought));
        if begun.is_some() && !in_thought {
            return None;
        }
        let [start, message, thought, answer] =
            [&self.start, &self.message, &self.thought, &self.answer].map(lark);
        let end = lark(self.ends.first()?);
        let form = self.constrain.as_ref().map(|constrain| format!(" (\" \"? {} form)?", lark(constrain)));
        let form = form.unwrap_or_default();
        let rules = format!(
            "thought: {thought} {message} rest\nrest: text? {end} {start} \"assistant\"\n\
             header: {answer}{form} {message}\nform: /[a-z]{{1,16}}/\n{TEXT}"
        );
        let before = if in_thought { "rest thought*" } else { "thought*" };
        let header = if with_header { " header" } else { "" };
        Some(Preamble { start: format!("{before}{header}"), rules })
    }
}
