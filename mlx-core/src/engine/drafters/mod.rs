//! Speculation: drafts of the next tokens, which one pass then verifies. Invariant: a draft changes when tokens are drawn, never which
//! ones. [`Sampler::draw`](crate::sampling::Sampler::draw) draws each token from the model's row after the true history.

mod answers;
pub(super) mod draft_state;
pub(super) mod hidden_rows;
mod lookup;
mod ngrams;

use std::fmt;
use std::ops::Add;
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
    /// Adds up to `most` tokens to `draft`, which is empty. Returns the number of tokens at the end of `history` that the proposal is based
    /// on. Acceptance is measured separately for different lengths, since longer matches are right more often.
    fn propose(&mut self, history: &TokenHistory, most: usize, draft: &mut Vec<u32>) -> usize;
}

/// The source of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speculate {
    /// All sources below, and text that a constraint fully determines.
    #[default]
    Auto,
    /// No drafts. Nothing is indexed.
    Off,
    /// The text itself.
    Lookup,
    /// The text itself and recent answers.
    Suffix,
    /// Only the model of [`EngineOptions::draft_model`](super::EngineOptions::draft_model).
    Draft,
    /// Only the checkpoint's own head for multi-token prediction.
    Mtp,
}

impl_variant_names!(Speculate, |name| format!(
    "{name:?} is not a source of drafts; use auto, off, lookup, suffix, draft or mtp"
));

/// A drafter that the program provides. Each sequence gets a new instance.
#[derive(Clone)]
pub struct CustomDrafter(Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>);

impl CustomDrafter {
    /// Creates a custom drafter; `make` creates the instances.
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

/// The kind of a model that drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelDrafter {
    /// A separate small model, which reads the text.
    Draft,
    /// A head of the engine's model, which reads the model's hidden states.
    Mtp,
}

impl ModelDrafter {
    /// Returns true if it drafts for requests with this source of drafts.
    pub(super) fn is_selected_by(self, speculate: Speculate) -> bool {
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
    /// The kind of the model that drafts, if any.
    model: Option<ModelDrafter>,
    /// True if drafts are made and verified regardless of their cost.
    force: bool,
    folder: Arc<ModelFolder>,
}

impl Drafters {
    /// Creates the drafters for the model in `folder`. `model` is the kind of model that drafts, if any.
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

    /// Returns the drafters of an owner's sequence, or `None` if it has none.
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
        // A custom drafter replaces all others.
        let speculate = if self.custom.is_some() { Speculate::Lookup } else { speculate };
        Some(Box::new(SequenceDrafts {
            own,
            kind,
            force: self.force,
            speculate,
            owner,
            model: self.model.filter(|model| model.is_selected_by(speculate)),
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

/// Tokens proposed for the next step.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    pub(super) kind: DraftKind,
}

/// The numbers of verified and accepted draft tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Rows of passes that verified draft tokens.
    pub drafted: usize,
    /// Rows with an accepted draft token.
    pub accepted: usize,
}

impl Add for DraftCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { drafted: self.drafted + other.drafted, accepted: self.accepted + other.accepted }
    }
}

/// Returns the kind of drafts that a model makes.
pub(super) fn model_kind() -> DraftKind {
    DraftKind::new(MODEL, 0)
}

/// The drafts of one sequence.
pub(super) struct SequenceDrafts {
    own: Option<Box<dyn Drafter>>,
    /// The source of `own`.
    kind: u8,
    force: bool,
    /// Selects the other sources.
    speculate: Speculate,
    /// The client whose answers may be proposed; `None` for the shared answers.
    owner: Option<u64>,
    /// The kind of model that may draft for the sequence.
    pub(super) model: Option<ModelDrafter>,
    pub(super) draft: Draft,
    pub(super) counts: DraftCounts,
}

impl SequenceDrafts {
    /// Proposes up to `most` tokens after `history`, replacing the previous proposal.
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

    /// Truncates the draft to at most `most` tokens that are in the vocabulary and that the constraint admits. If the constraint determines
    /// a longer text, that text becomes the draft.
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
        // The admitted tokens begin with the same bytes.
        let drafted: usize = tokens.iter().map(|token| tokenizer.token_bytes(*token).len()).sum();
        if bytes.len() > drafted {
            *tokens = tokenizer.spell(&bytes);
            tokens.truncate(most);
            *kind = DraftKind::new(FORCED, tokens.len());
        }
    }

    /// Returns the planner's view of the draft.
    pub(super) fn view(&self) -> DraftView {
        DraftView { length: self.draft.tokens.len(), kind: self.draft.kind, force: self.force }
    }
}
