//! Speculation: drafts of the tokens that come next, which one pass then verifies. Invariant: a draft changes when tokens are drawn, never
//! which: each is drawn by [`Sampler::draw`](crate::sampling::Sampler::draw) from the model's row under the true history.

mod answers;
pub(super) mod draft_state;
mod forced;
pub(super) mod hidden_rows;
mod lookup;
mod ngrams;

use std::fmt;
use std::sync::Arc;

use chat_format::text::Tokenizer;
use serde::{Deserialize, Serialize};

pub(super) use self::answers::ANSWERS_BYTES;
use self::answers::RecentAnswers;
use self::lookup::Lookup;
use super::schedule::speculation::{DraftKind, DraftView};
use crate::folder::ModelFolder;
use crate::sampling::{Constraint, TokenHistory};
use crate::variant_names::impl_variant_names;

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
    /// From the model of [`EngineOptions::draft_model`](super::EngineOptions::draft_model) alone.
    Draft,
    /// From the checkpoint's own head that predicts the token after the next one, alone.
    Mtp,
}

impl_variant_names!(Speculate, |name| format!(
    "{name:?} is no source of drafts; use auto, off, lookup, suffix, draft or mtp"
));

/// A drafter of a program's own, made anew for each sequence.
#[derive(Clone)]
pub struct CustomDrafter(Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>);

impl CustomDrafter {
    /// What `make` makes.
    pub fn new(make: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }
}

impl fmt::Debug for CustomDrafter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CustomDrafter").finish_non_exhaustive()
    }
}

impl PartialEq for CustomDrafter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CustomDrafter {}

/// A model that drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelDrafter {
    /// A small one of its own, which reads the text.
    Draft,
    /// A head of the engine's model, which reads its hidden states.
    Mtp,
}

impl ModelDrafter {
    /// Whether it drafts for requests that ask for this.
    pub(super) fn is_meant(self, speculate: Speculate) -> bool {
        speculate == Speculate::Auto
            || speculate
                == match self {
                    Self::Draft => Speculate::Draft,
                    Self::Mtp => Speculate::Mtp,
                }
    }
}

/// The drafters that sequences share.
pub(super) struct Drafters {
    answers: RecentAnswers,
    custom: Option<CustomDrafter>,
    /// The model that drafts, if there is one.
    model: Option<ModelDrafter>,
    /// Whether drafts are made and verified whatever they cost.
    force: bool,
    folder: Arc<ModelFolder>,
}

impl Drafters {
    /// For the model in `folder`, for which another one may draft.
    pub(super) fn new(
        custom: Option<CustomDrafter>,
        model: Option<ModelDrafter>,
        force: bool,
        folder: Arc<ModelFolder>,
    ) -> Self {
        Self { answers: RecentAnswers::default(), custom, model, force, folder }
    }

    pub(super) fn is_forced(&self) -> bool {
        self.force
    }

    /// Returns the drafters of an owner's sequence; `None` without any.
    pub(super) fn for_sequence(
        &self,
        owner: Option<u64>,
        speculate: Speculate,
    ) -> Option<Box<SequenceDrafts>> {
        let (own, kind): (Option<Box<dyn Drafter>>, _) = match (&self.custom, speculate) {
            (_, Speculate::Off) => return None,
            (Some(custom), _) => (Some((custom.0)()), CUSTOM),
            (None, Speculate::Draft | Speculate::Mtp) => (None, LOOKUP),
            (None, _) => (Some(Box::new(Lookup::default())), LOOKUP),
        };
        // A drafter of the program's own takes the place of all others.
        let speculate = if self.custom.is_some() { Speculate::Lookup } else { speculate };
        Some(Box::new(SequenceDrafts {
            own,
            kind,
            force: self.force,
            speculate,
            owner,
            model: self.model.filter(|model| model.is_meant(speculate)),
            draft: Draft::default(),
            counts: DraftCounts::default(),
        }))
    }

    /// Drops all answers.
    pub(super) fn clear(&mut self) {
        self.answers = RecentAnswers::default();
    }

    /// Stores an answer for later drafts of the same owner.
    pub(super) fn learn(&mut self, owner: Option<u64>, answer: &[u32]) {
        self.answers.add(owner, answer);
    }
}

const LOOKUP: u8 = 0;
const ANSWERS: u8 = 1;
const CUSTOM: u8 = 2;
const FORCED: u8 = 3;
const MODEL: u8 = 4;

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

/// The kind of what a model drafts.
pub(super) fn model_kind() -> DraftKind {
    DraftKind::new(MODEL, 0)
}

/// The drafts of one sequence.
pub(super) struct SequenceDrafts {
    own: Option<Box<dyn Drafter>>,
    /// The source that `own` is.
    kind: u8,
    force: bool,
    /// Which other sources there are.
    speculate: Speculate,
    /// The client whose answers may be proposed; `None` for the shared answers.
    owner: Option<u64>,
    /// The model that may draft.
    pub(super) model: Option<ModelDrafter>,
    pub(super) draft: Draft,
    pub(super) counts: DraftCounts,
}

impl SequenceDrafts {
    /// Proposes up to `most` tokens behind `history`, in place of what was proposed before.
    pub(super) fn propose(&mut self, history: &TokenHistory, most: usize, shared: &Drafters) {
        self.draft.tokens.clear();
        if most == 0 {
            return;
        }
        let tokens = &mut self.draft.tokens;
        let mut length = self.own.as_mut().map_or(0, |own| own.propose(history, most, tokens));
        let mut source = self.kind;
        if matches!(self.speculate, Speculate::Auto | Speculate::Suffix) {
            let mut other = Vec::new();
            let found = shared.answers.propose(self.owner, history.tokens(), most, &mut other);
            if found > length && !other.is_empty() {
                (self.draft.tokens, length, source) = (other, found, ANSWERS);
            }
        }
        self.draft.kind = DraftKind::new(source, length);
    }

    /// Cuts the draft to what can come: `most` tokens of the vocabulary that the constraint, if there is one, admits. Where it leaves a
    /// longer text as the only one, the draft becomes that.
    pub(super) fn finish(
        &mut self,
        history: &TokenHistory,
        constraint: Option<&mut (dyn Constraint + 'static)>,
        most: usize,
        vocabulary: usize,
        shared: &Drafters,
    ) {
        let tokens = &mut self.draft.tokens;
        let known = tokens.iter().take(most).take_while(|&&token| (token as usize) < vocabulary).count();
        tokens.truncate(known);
        if let Some(constraint) = constraint.filter(|_| most > 0) {
            self.constrain(constraint, history, most, &shared.folder.tokenizer);
        }
    }

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
        if self.speculate != Speculate::Auto {
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
        DraftView { length: self.draft.tokens.len(), kind: self.draft.kind, force: self.force }
    }
}
