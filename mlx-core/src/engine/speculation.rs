//! Speculation: proposes drafts of the next tokens and verifies them with the rows of a pass. Invariant: a draft changes when tokens are
//! drawn, never which ones.

pub(super) mod draft_model;
pub(super) mod draft_source;
mod verify;

use std::sync::Arc;
use std::time::Instant;

use self::draft_model::DraftModel;
pub(super) use self::verify::DraftRows;
use super::capacity::Capacity;
use super::drafters::{Drafters, model_kind};
use super::options::EngineOptions;
use super::panic_guard::PanicGuard;
use super::run::device::Device;
use super::schedule::DecodeRows;
use super::schedule::plan::Next;
use super::schedule::speculation::{MAX_DRAFT, SpeculationPolicy};
use super::sequence::{Sequence, Sequences};
use super::stats::Gauges;
use crate::folder::ModelFolder;
use crate::sampling::Scratch;

/// The number of tokens that a model drafts if drafts are forced.
const FORCED_TOKENS: usize = 4;

/// The drafters, the model that drafts, and the policy with its measured times and acceptance rates.
pub(super) struct Speculation {
    drafters: Drafters,
    model: Option<DraftModel>,
    policy: SpeculationPolicy,
    /// Bytes of a checkpoint; 0 if states can be truncated anywhere.
    checkpoint_bytes: u64,
    scratch: Scratch,
    gauges: Arc<Gauges>,
}

/// The maximum length of a draft, by sequence.
type Limits = Vec<(u64, usize)>;

impl Speculation {
    pub(super) fn new(
        model: Option<DraftModel>,
        options: &EngineOptions,
        capacity: &Capacity,
        (folder, gauges): (Arc<ModelFolder>, Arc<Gauges>),
    ) -> Self {
        let (custom, kind) = (options.drafter.clone(), model.as_ref().map(DraftModel::kind));
        Self {
            drafters: Drafters::new(custom, kind, options.force_drafts, folder),
            model,
            policy: SpeculationPolicy::default(),
            checkpoint_bytes: capacity.checkpoint_bytes(),
            scratch: Scratch::default(),
            gauges,
        }
    }

    /// Creates the drafters of a new sequence.
    pub(super) fn prepare(&self, sequence: &mut Sequence) {
        let (owner, speculate) = (sequence.limits.owner, sequence.limits.speculate);
        sequence.drafts = self.drafters.for_sequence(owner, speculate);
    }

    /// Returns the policy that the planner uses to choose the drafts to verify.
    pub(super) fn policy(&self) -> &SpeculationPolicy {
        &self.policy
    }

    /// Returns true if drafts are made and verified regardless of their cost.
    pub(super) fn is_forced(&self) -> bool {
        self.drafters.is_forced()
    }

    /// Proposes tokens for the sequences that decode next. `step` has the rows without drafts. Checkpoints of drafts may take `unclaimed`
    /// bytes.
    pub(super) fn propose(
        &mut self,
        sequences: &mut Sequences,
        device: &Device,
        step: DecodeRows,
        unclaimed: u64,
        guard: &mut PanicGuard,
    ) {
        let limits = self.limits(sequences, device, unclaimed);
        for &(id, limit) in &limits {
            let Sequence { drafts: Some(drafts), history, .. } = sequences.get_mut(id) else { continue };
            guard.single(id, || drafts.propose(history, limit, &self.drafters));
        }
        self.draft_by_model(&limits, sequences, step);
        for &(id, limit) in &limits {
            let Sequence { drafts: Some(drafts), history, sampler, .. } = sequences.get_mut(id) else {
                continue;
            };
            let constraint = sampler.constraint_mut();
            guard.single(id, || {
                drafts.finish(history, constraint, limit, device.vocabulary(), &self.drafters);
            });
        }
    }

    /// Records the duration of a decode step with `rows` rows.
    pub(super) fn record_time(&mut self, rows: usize, seconds: f64) {
        self.policy.record_time(rows, seconds);
    }

    /// Stores the answer of an ended sequence for later drafts of the same owner.
    pub(super) fn learn(&mut self, sequence: &Sequence) {
        if sequence.drafts.is_some() {
            self.drafters.learn(sequence.limits.owner, sequence.history.generated());
        }
    }

    /// Drops the acceptance rates of an ended sequence.
    pub(super) fn remove(&mut self, id: u64) {
        self.policy.remove(id);
    }

    /// Drops data that a panic may have left partly written.
    pub(super) fn reset(&mut self) {
        self.drafters.clear();
        self.scratch = Scratch::default();
    }

    /// Returns the draft limits of the sequences that have drafters.
    fn limits(&self, sequences: &Sequences, device: &Device, mut unclaimed: u64) -> Limits {
        let drafting = sequences.iter().filter(|(_, it)| it.drafts.is_some());
        let limited = drafting.map(|(id, sequence)| {
            let mut limit = if sequence.next() == Next::Decode { longest_draft(sequence, device) } else { 0 };
            if device.is_recurrent() {
                // Each draft row has a snapshot of the state until it is verified.
                let bytes = self.checkpoint_bytes.max(1);
                limit = limit.min((unclaimed / bytes) as usize);
                unclaimed -= limit as u64 * bytes;
            }
            (id, limit)
        });
        limited.collect()
    }

    /// Drafts with the model for sequences where its drafts are more likely to be right than drafts from texts, if that is expected to pay
    /// off.
    fn draft_by_model(&mut self, limits: &Limits, sequences: &mut Sequences, step: DecodeRows) {
        let Self { drafters, model: Some(model), policy, scratch, .. } = self else { return };
        let prefers_model = |&(id, limit): &(u64, usize)| {
            let Sequence { drafts: Some(drafts), history, .. } = sequences.get(id) else { return false };
            let is_free =
                drafts.draft.tokens.is_empty() || policy.prefers(id, model_kind(), drafts.draft.kind);
            drafts.model.is_some() && is_free && limit > 0 && model.headroom(history.len()) > MAX_DRAFT
        };
        let ids: Vec<u64> = limits.iter().filter(|it| prefers_model(it)).map(|it| it.0).collect();
        let worth =
            || step.limit.map_or(0, |limit| policy.worth_drafting(step.rows, limit, &ids, model_kind()));
        let count = if drafters.is_forced() { FORCED_TOKENS } else { worth() };
        // The draft model's state must not outgrow the reservation.
        let is_long_enough = |id: &u64| limits.iter().any(|it| it.0 == *id && it.1 >= count);
        let ids: Vec<u64> = ids.into_iter().filter(is_long_enough).collect();
        if count == 0 || ids.is_empty() {
            return;
        }
        let mut drafting = sequences.several_mut(&ids);
        for drafts in drafting.iter_mut().filter_map(|it| it.drafts.as_mut()) {
            drafts.draft.tokens.clear();
            drafts.draft.kind = model_kind();
        }
        let begun = Instant::now();
        match model.draft(drafting, count, scratch) {
            Ok(0) => {}
            Ok(passes) => policy.record_drafting(begun.elapsed().as_secs_f64() / passes as f64),
            Err(error) => {
                tracing::warn!(%error, "the draft model failed");
                for sequence in sequences.several_mut(&ids) {
                    sequence.running().draft_state = None;
                }
            }
        }
    }
}

/// Returns the maximum length of a sequence's draft. It leaves one token to draw, and stays within the reservation and the context.
fn longest_draft(sequence: &Sequence, device: &Device) -> usize {
    let Some(run) = &sequence.run else { return 0 };
    let (length, offset) = (sequence.history.len(), run.state.offset());
    // After a context shift, a state cannot be truncated.
    if sequence.quarantined || run.state.seen() != offset {
        return 0;
    }
    let left = sequence.limits.max_tokens.saturating_sub(sequence.history.generated().len());
    let reserved = sequence.reservation.tokens.saturating_sub(length);
    let context = device.context().saturating_sub(offset);
    let longest = MAX_DRAFT.min(left.min(reserved).min(context).saturating_sub(1));
    let same = device.variant(length) == device.variant(length + longest + 1);
    if same { longest } else { 0 }
}
