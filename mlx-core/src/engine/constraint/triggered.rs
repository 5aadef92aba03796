//! A constraint that begins after a marker. The text is free before the marker, and again once the grammar is complete.

use std::sync::Arc;

use super::compiled::Compiled;
use super::matcher::Matcher;
use super::place::ConstraintState;
use super::triggers::{Triggers, find};
use crate::sampling::TokenMask;

/// The kind of a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The text so far is white space, or a possible beginning of the tag that opens a thought.
    Start,
    Thought,
    Free,
    /// The text after a marker.
    Constrained,
}

/// A part of the text.
struct Part {
    kind: Kind,
    /// The number of tokens before the part began.
    at: usize,
    /// The end of the last token before the part, which belongs to this part.
    rest: Vec<u8>,
}

/// The state within a text with constrained parts.
pub(super) struct TriggeredText {
    compiled: Arc<Compiled>,
    triggers: Arc<Triggers>,
    tokens: Vec<u32>,
    /// The parts so far; the last is the current one.
    parts: Vec<Part>,
    /// The end of an unconstrained part, which may be the beginning of a marker.
    tail: Vec<u8>,
    /// The matcher of the current part, if it is constrained.
    matcher: Option<Matcher>,
}

impl TriggeredText {
    pub(super) fn new(compiled: Arc<Compiled>, triggers: Arc<Triggers>) -> Self {
        let kind = match &triggers.thoughts {
            None => Kind::Free,
            Some(thoughts) if thoughts.is_open => Kind::Thought,
            Some(_) => Kind::Start,
        };
        let parts = vec![Part { kind, at: 0, rest: Vec::new() }];
        Self { compiled, triggers, tokens: Vec::new(), parts, tail: Vec::new(), matcher: None }
    }

    fn part(&self) -> &Part {
        self.parts.last().expect("the first part is never dropped")
    }

    fn begin(&mut self, kind: Kind, rest: Vec<u8>) {
        self.parts.push(Part { kind, at: self.tokens.len(), rest: rest.clone() });
        (self.matcher, self.tail) = (None, rest);
    }

    /// Consumes a token after a marker. After the end of the grammar, it belongs to the free text that follows.
    fn push_constrained(&mut self, token: u32) -> Result<(), String> {
        let Some(matcher) = &mut self.matcher else { return Err("the matcher is missing".into()) };
        if matcher.accepts(&[token])? {
            matcher.consume(&[token])?;
            self.tokens.push(token);
            if matcher.is_done() {
                self.begin(Kind::Free, Vec::new());
            }
            return Ok(());
        }
        if !matcher.is_complete()? {
            return Err("it forbids the last token".into());
        }
        self.begin(Kind::Free, Vec::new());
        self.push(token)
    }

    /// Finds the parts that begin in the tail.
    fn scan(&mut self) -> Result<(), String> {
        loop {
            let triggers = Arc::clone(&self.triggers);
            let after = |part: &[u8]| find(&self.tail, part).map(|at| at + part.len());
            let next = match (self.part().kind, &triggers.thoughts) {
                (Kind::Start, Some(thoughts)) => {
                    let text = self.tail.trim_ascii_start();
                    let white = self.tail.len() - text.len();
                    if text.starts_with(&thoughts.open) {
                        Some((Kind::Thought, white + thoughts.open.len()))
                    } else if thoughts.open.starts_with(text) {
                        return Ok(());
                    } else {
                        Some((Kind::Free, 0))
                    }
                }
                (Kind::Thought, Some(thoughts)) => after(&thoughts.close).map(|end| (Kind::Free, end)),
                (Kind::Constrained, _) => return Ok(()),
                _ => triggers
                    .markers
                    .iter()
                    .filter_map(|it| after(it))
                    .min()
                    .map(|end| (Kind::Constrained, end)),
            };
            let Some((kind, end)) = next else {
                let surplus = self.tail.len().saturating_sub(triggers.longest());
                self.tail.drain(..surplus);
                return Ok(());
            };
            let rest = self.tail.split_off(end);
            self.begin(kind, rest);
            if kind == Kind::Constrained {
                return self.enter();
            }
        }
    }

    /// Starts the grammar, with the bytes of it that the last token contained.
    fn enter(&mut self) -> Result<(), String> {
        let mut matcher = self.compiled.matcher();
        let rest = self.triggers.tokens_of(&self.part().rest);
        matcher.consume(&rest)?;
        self.tail.clear();
        self.matcher = Some(matcher);
        Ok(())
    }
}

impl ConstraintState for TriggeredText {
    fn push(&mut self, token: u32) -> Result<(), String> {
        if self.part().kind == Kind::Constrained && !self.compiled.end_tokens.contains(&token) {
            return self.push_constrained(token);
        }
        self.tokens.push(token);
        let bytes = self.triggers.bytes(token).to_vec();
        self.tail.extend(bytes);
        self.scan()
    }

    fn truncate(&mut self, length: usize) -> Result<(), String> {
        let ends = &self.compiled.end_tokens;
        // The matcher does not consume end-of-sequence tokens.
        let removed = self.tokens.iter().skip(length).filter(|token| !ends.contains(token)).count();
        self.tokens.truncate(length);
        let before = self.parts.len();
        while self.part().at > length {
            self.parts.pop();
        }
        let (kind, at) = (self.part().kind, self.part().at);
        match (&mut self.matcher, kind) {
            (Some(matcher), Kind::Constrained) if before == self.parts.len() => matcher.rollback(removed),
            (_, Kind::Constrained) => {
                self.enter()?;
                let tokens = self.tokens[at..].to_vec();
                self.matcher.as_mut().map_or(Ok(()), |matcher| matcher.consume(&tokens))
            }
            _ => {
                self.matcher = None;
                let triggers = Arc::clone(&self.triggers);
                // A tail is never longer than this, and a token is rarely empty.
                let mut from = self.tokens.len();
                let mut bytes = 0;
                while from > at && bytes < triggers.longest() {
                    from -= 1;
                    bytes += triggers.bytes(self.tokens[from]).len();
                }
                let mut tail = if from == at { self.part().rest.clone() } else { Vec::new() };
                self.tokens[from..].iter().for_each(|token| tail.extend(triggers.bytes(*token)));
                self.tail = tail;
                Ok(())
            }
        }
    }

    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        if let Some(matcher) = &mut self.matcher {
            return if matcher.is_complete()? { Ok(None) } else { matcher.mask().map(Some) };
        }
        if self.part().kind == Kind::Thought {
            return Ok(None);
        }
        let triggers = Arc::clone(&self.triggers);
        let mut forbidden =
            triggers.straddling.iter().filter(|(_, before)| self.tail.ends_with(before)).peekable();
        if forbidden.peek().is_none() {
            return Ok(None);
        }
        let mut mask = TokenMask::default();
        mask.allow_all(triggers.vocabulary());
        forbidden.for_each(|(token, _)| mask.forbid(*token));
        Ok(Some(mask))
    }

    fn forced_bytes(&mut self) -> Result<Vec<u8>, String> {
        self.matcher.as_mut().map_or(Ok(Vec::new()), Matcher::forced_bytes)
    }

    fn admits(&mut self, tokens: &[u32]) -> Result<usize, String> {
        let Some(matcher) = &mut self.matcher else { return Ok(tokens.len()) };
        let admitted = matcher.admits(tokens)?;
        // The text is free again after the end of the grammar.
        Ok(if matcher.is_complete()? { tokens.len() } else { admitted })
    }
}
