//! Thoughts between tags. White space around the tags belongs to neither part.

use super::events::Events;
use crate::chat::format::ThoughtTags;

/// Where in an answer the parser is, and the text whose part is not certain yet.
#[derive(Debug, Clone)]
pub(super) struct TagParser {
    stage: Stage,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Only white space has come.
    Start,
    /// A thought was opened, but no letter of it has come; its label may still come.
    Label,
    /// The same after the label.
    ThoughtStart,
    Thought,
    /// A thought was closed, but no letter of the answer has come.
    AnswerStart,
    Answer,
}

impl TagParser {
    pub(super) fn new(tags: &ThoughtTags, prompt: &str) -> Self {
        let stage = if tags.is_open_in(prompt) { Stage::ThoughtStart } else { Stage::Start };
        Self { stage, held: String::new() }
    }

    pub(super) fn text(&mut self, text: &str, tags: &ThoughtTags, events: &mut Events) {
        self.held.push_str(text);
        while self.step(tags, events) {}
    }

    /// Takes a tag that is a special token. Where it has no meaning it is skipped, as other special tokens are.
    pub(super) fn marker(&mut self, token: u32, tags: &ThoughtTags, events: &mut Events) {
        let in_thought = matches!(self.stage, Stage::Label | Stage::ThoughtStart | Stage::Thought);
        let stage = match in_thought {
            false if tags.open.special == Some(token) => Stage::Label,
            true if tags.close.special == Some(token) => Stage::AnswerStart,
            _ => return,
        };
        // White space before a tag belongs to no part.
        let held = std::mem::take(&mut self.held);
        if in_thought {
            events.reasoning(held.trim_end());
        } else {
            events.text(held.trim_end());
        }
        self.stage = stage;
    }

    pub(super) fn finish(&mut self, tags: &ThoughtTags, events: &mut Events) {
        let rest = std::mem::take(&mut self.held);
        match self.stage {
            // The answer may be nothing but white space, or end within what looked like a tag.
            Stage::Start | Stage::Answer => events.text(&rest),
            Stage::AnswerStart => events.text(rest.trim_start()),
            Stage::Label if rest.trim() == tags.label => {}
            Stage::Label | Stage::ThoughtStart | Stage::Thought => events.reasoning(rest.trim_end()),
        }
    }

    /// Decides what it can of the held text; true if there may be more to decide.
    fn step(&mut self, tags: &ThoughtTags, events: &mut Events) -> bool {
        match self.stage {
            Stage::Start => {
                let (trimmed, open) = (self.held.trim_start(), tags.open.searched());
                if !open.is_empty() && trimmed.starts_with(open) {
                    let rest = trimmed[open.len()..].to_owned();
                    self.go(Stage::Label, rest)
                } else if trimmed.is_empty() || open.starts_with(trimmed) {
                    false
                } else {
                    self.go(Stage::Answer, self.held.clone())
                }
            }
            Stage::Label => {
                let rest = self.held.trim_start();
                if rest.len() < tags.label.len() && tags.label.starts_with(rest) {
                    return false;
                }
                let rest = rest.strip_prefix(tags.label).unwrap_or(rest).to_owned();
                self.go(Stage::ThoughtStart, rest)
            }
            Stage::ThoughtStart | Stage::AnswerStart => {
                let rest = self.held.trim_start().to_owned();
                let begins = !rest.is_empty();
                let next = match self.stage {
                    stage if !begins => stage,
                    Stage::ThoughtStart => Stage::Thought,
                    _ => Stage::Answer,
                };
                self.go(next, rest) && begins
            }
            Stage::Thought => self.thought(tags.close.searched(), events),
            Stage::Answer => {
                events.text(&self.held);
                self.held.clear();
                false
            }
        }
    }

    fn thought(&mut self, close: &str, events: &mut Events) -> bool {
        if let Some(end) =
            Some(close).filter(|close| !close.is_empty()).and_then(|close| self.held.find(close))
        {
            events.reasoning(self.held[..end].trim_end());
            let rest = self.held[end + close.len()..].to_owned();
            return self.go(Stage::AnswerStart, rest);
        }
        let rest = self.held.split_off(self.held.len() - undecided(&self.held, close));
        events.reasoning(&self.held);
        self.held = rest;
        false
    }

    fn go(&mut self, stage: Stage, held: String) -> bool {
        self.stage = stage;
        self.held = held;
        true
    }
}

/// The number of bytes at the end of a thought that may belong to its end: part of the tag, and white space before it.
fn undecided(thought: &str, close: &str) -> usize {
    let tag = (1..close.len())
        .rev()
        .find(|&length| close.is_char_boundary(length) && thought.ends_with(&close[..length]));
    let tag = tag.unwrap_or(0);
    let before = &thought[..thought.len() - tag];
    tag + before.len() - before.trim_end().len()
}
