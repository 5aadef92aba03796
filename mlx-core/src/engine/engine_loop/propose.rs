//! The part of the loop that drafts: from texts for each sequence, and by a model for those where that is likelier to be right.

use std::time::Instant;

use super::EngineLoop;
use crate::engine::drafters::model_kind;
use crate::engine::run::device::Device;
use crate::engine::schedule::plan::{Next, SequenceView};
use crate::engine::schedule::speculation::MOST_DRAFT;
use crate::engine::sequence::Sequence;

/// How many tokens a model drafts where it does not matter what they cost.
const ALWAYS: usize = 4;

impl EngineLoop {
    /// Proposes tokens for the sequences that decode next, as many as may be verified.
    pub(super) fn propose(&mut self) {
        let most = self.most_drafted();
        for &(id, most) in &most {
            let Sequence { drafts: Some(drafts), history, .. } = self.sequences.get_mut(id) else { continue };
            self.panics.alone = Some(id);
            drafts.propose(history, most, &self.drafters);
        }
        self.panics.alone = None;
        self.draft_by_model(&most);
        for &(id, most) in &most {
            let Sequence { drafts: Some(drafts), history, sampler, .. } = self.sequences.get_mut(id) else {
                continue;
            };
            self.panics.alone = Some(id);
            drafts.finish(history, sampler.constraint_mut(), most, self.device.vocabulary(), &self.drafters);
        }
        self.panics.alone = None;
    }

    /// How many tokens may be drafted for each of the sequences that have drafts.
    fn most_drafted(&self) -> Vec<(u64, usize)> {
        // What nothing is reserved for and nothing is kept in.
        let mut room = self.scheduler.ledger().free().saturating_sub(self.prefixes.bytes(&self.sequences));
        let drafting = self.sequences.iter().filter(|(_, it)| it.drafts.is_some());
        let bounded = drafting.map(|(id, sequence)| {
            let mut most =
                if sequence.next() == Next::Decode { most_drafted(sequence, &self.device) } else { 0 };
            if self.device.is_recurrent() {
                // Each row of a draft leaves a state of its own until it is verified.
                let bytes = self.capacity.checkpoint_bytes().max(1);
                most = most.min((room / bytes) as usize);
                room -= most as u64 * bytes;
            }
            (id, most)
        });
        bounded.collect()
    }

    /// Has the model draft that is there for it, where its drafts are likelier to be right than those from texts, and expected to pay.
    fn draft_by_model(&mut self, most: &[(u64, usize)]) {
        let Some(model) = &self.draft_model else { return };
        let prefers_model = |&(id, most): &(u64, usize)| {
            let Sequence { drafts: Some(drafts), history, .. } = self.sequences.get(id) else { return false };
            let is_free =
                drafts.draft.tokens.is_empty() || self.scheduler.prefers(id, model_kind(), drafts.draft.kind);
            drafts.model.is_some() && is_free && most > 0 && model.room(history.len()) > MOST_DRAFT
        };
        let ids: Vec<u64> = most.iter().filter(|it| prefers_model(it)).map(|it| it.0).collect();
        let decoding: Vec<SequenceView> =
            self.views().into_iter().filter(|it| it.next() == Next::Decode).collect();
        let worth = || self.scheduler.worth_drafting(&decoding, &ids, model_kind());
        let count = if self.drafters.always { ALWAYS } else { worth() };
        // Nor may its own state outgrow what is reserved.
        let room = |id: &u64| most.iter().any(|it| it.0 == *id && it.1 >= count);
        let ids: Vec<u64> = ids.into_iter().filter(room).collect();
        if count == 0 || ids.is_empty() {
            return;
        }
        let mut sequences = self.sequences.several_mut(&ids);
        for drafts in sequences.iter_mut().filter_map(|it| it.drafts.as_mut()) {
            drafts.draft.tokens.clear();
            drafts.draft.kind = model_kind();
        }
        let begun = Instant::now();
        match model.draft(sequences, count, &mut self.scratch) {
            Ok(0) => {}
            Ok(passes) => self.scheduler.record_drafting(begun.elapsed().as_secs_f64() / passes as f64),
            Err(error) => {
                tracing::warn!(%error, "the draft model failed");
                for sequence in self.sequences.several_mut(&ids) {
                    sequence.running().draft_state = None;
                }
            }
        }
    }
}

/// How many tokens of a draft a sequence could verify: those that it may still draw but one, within what is reserved for it and within its
/// context.
fn most_drafted(sequence: &Sequence, device: &Device) -> usize {
    let Some(run) = &sequence.run else { return 0 };
    let (length, offset) = (sequence.history.len(), run.state.offset());
    // After a context shift a state cannot be cut.
    if sequence.quarantined || run.state.seen() != offset {
        return 0;
    }
    let left = sequence.limits.max_tokens.saturating_sub(sequence.history.generated().len());
    let reserved = sequence.reservation.tokens.saturating_sub(length);
    let context = device.context().saturating_sub(offset);
    let most = MOST_DRAFT.min(left.min(reserved).min(context).saturating_sub(1));
    let same = device.variant(length) == device.variant(length + most + 1);
    if same { most } else { 0 }
}
