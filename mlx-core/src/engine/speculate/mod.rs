//! Speculation: drafts of the tokens that come next, which one pass then verifies. Invariant: a draft changes when tokens are drawn, never
//! which: each is drawn by [`Sampler::draw`](crate::sampling::Sampler::draw) from the model's row under the true history.

mod answers;
mod forced;
mod lookup;
mod ngrams;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

pub(super) use self::answers::ANSWERS_BYTES;
use self::answers::Answers;
use self::lookup::Lookup;
use super::schedule::speculation::{DraftKind, DraftView, MOST_DRAFT};
use crate::folder::ModelFolder;
use crate::sampling::{Constraint, TokenHistory};
use crate::text::Tokenizer;

/// Proposes tokens that may follow a history.
pub trait Drafter: Send {
    /// Adds up to `most` tokens to `draft`, which is empty. Returns how many tokens at the end of `history` the proposal rests on: drafts
    /// with more of them are counted apart, for they are right more often.
    fn propose(&mut self, history: &TokenHistory, most: usize, draft: &mut Vec<u32>) -> usize;
}

/// Where drafts come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speculate {
    /// From all sources: those below, and the text that a constraint leaves as the only one.
    #[default]
    Auto,
    /// From nowhere: nothing is indexed.
    Off,
    /// From the text itself.
    Lookup,
    /// From the text itself and from recent answers.
    Suffix,
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::deserialize(StrDeserializer::<ValueError>::new(text))
            .map_err(|_| format!("{text:?} is no source of drafts; use auto, off, lookup or suffix"))
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// A drafter of a program's own, made anew for each sequence.
#[derive(Clone)]
pub struct CustomDrafter {
    make: Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>,
    always: bool,
}

impl CustomDrafter {
    /// One whose drafts are verified where that is expected to save time.
    pub fn new(make: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), always: false }
    }

    /// The same, with every draft verified, for tests.
    #[must_use]
    pub fn always(self) -> Self {
        Self { always: true, ..self }
    }
}

impl fmt::Debug for CustomDrafter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CustomDrafter").field("always", &self.always).finish_non_exhaustive()
    }
}

impl PartialEq for CustomDrafter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.make, &other.make) && self.always == other.always
    }
}

impl Eq for CustomDrafter {}

/// The drafters that sequences share.
pub(super) struct Drafters {
    answers: Answers,
    custom: Option<CustomDrafter>,
    folder: Arc<ModelFolder>,
}

impl Drafters {
    pub(super) fn new(custom: Option<CustomDrafter>, folder: Arc<ModelFolder>) -> Self {
        Self { answers: Answers::default(), custom, folder }
    }

    /// What drafts for a sequence; `None` if nothing does.
    pub(super) fn for_sequence(&self, speculate: Speculate) -> Option<Box<SequenceDrafts>> {
        let (own, kind): (Box<dyn Drafter>, _) = match (&self.custom, speculate) {
            (_, Speculate::Off) => return None,
            (Some(custom), _) => ((custom.make)(), CUSTOM),
            (None, _) => (Box::new(Lookup::default()), LOOKUP),
        };
        let always = self.custom.as_ref().is_some_and(|custom| custom.always);
        let answers = self.custom.is_none() && speculate != Speculate::Lookup;
        let forced = self.custom.is_none() && speculate == Speculate::Auto;
        let (draft, counts) = (Draft::default(), DraftCounts::default());
        Some(Box::new(SequenceDrafts { own, kind, always, answers, forced, draft, counts }))
    }

    /// Keeps an answer for later drafts.
    pub(super) fn learn(&mut self, answer: &[u32]) {
        self.answers.add(answer);
    }
}

const LOOKUP: u8 = 0;
const ANSWERS: u8 = 1;
const CUSTOM: u8 = 2;
const FORCED: u8 = 3;

/// Tokens that were proposed for the next step.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    pub(super) kind: DraftKind,
}

/// How many tokens of drafts were verified, and how many of them were right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Rows of passes that drafts took.
    pub drafted: usize,
    /// Those whose token was drawn.
    pub accepted: usize,
}

/// The drafts of one sequence.
pub(super) struct SequenceDrafts {
    own: Box<dyn Drafter>,
    /// The source that `own` is.
    kind: u8,
    always: bool,
    /// Whether recent answers are looked up, too.
    answers: bool,
    /// Whether a text that a constraint leaves as the only one is drafted.
    forced: bool,
    pub(super) draft: Draft,
    pub(super) counts: DraftCounts,
}

impl SequenceDrafts {
    /// Proposes up to `most` tokens behind `history`, in place of what was proposed before.
    pub(super) fn propose(
        &mut self,
        history: &TokenHistory,
        constraint: Option<&mut (dyn Constraint + 'static)>,
        most: usize,
        vocabulary: usize,
        shared: &Drafters,
    ) {
        let most = most.min(MOST_DRAFT);
        self.draft.tokens.clear();
        if most == 0 {
            return;
        }
        let mut length = self.own.propose(history, most, &mut self.draft.tokens);
        let mut source = self.kind;
        if self.answers {
            let mut other = Vec::new();
            let found = shared.answers.propose(history.tokens(), most, &mut other);
            if found > length && !other.is_empty() {
                (self.draft.tokens, length, source) = (other, found, ANSWERS);
            }
        }
        let known = self.draft.tokens.iter().take_while(|&&token| (token as usize) < vocabulary).count();
        self.draft.tokens.truncate(most.min(known));
        self.draft.kind = DraftKind::new(source, length);
        if let Some(constraint) = constraint {
            self.constrain(constraint, history, most, &shared.folder.tokenizer);
        }
    }

    /// Cuts the draft where it is forbidden, and replaces it where it is shorter than what must come.
    fn constrain(
        &mut self,
        constraint: &mut (dyn Constraint + 'static),
        history: &TokenHistory,
        most: usize,
        tokenizer: &Tokenizer,
    ) {
        let Draft { tokens, kind } = &mut self.draft;
        if !tokens.is_empty() {
            tokens.truncate(constraint.admits(history, tokens));
        }
        if !self.forced {
            return;
        }
        let bytes = constraint.forced_bytes(history);
        // What is admitted begins with the same bytes.
        let drafted: usize = tokens.iter().map(|token| tokenizer.token_bytes(*token).len()).sum();
        if bytes.len() > drafted {
            *tokens = forced::tokens_of(&bytes, tokenizer);
            tokens.truncate(most);
            *kind = DraftKind::new(FORCED, tokens.len());
        }
    }

    /// As the planner sees it.
    pub(super) fn view(&self) -> DraftView {
        DraftView { length: self.draft.tokens.len(), kind: self.draft.kind, always: self.always }
    }
}
