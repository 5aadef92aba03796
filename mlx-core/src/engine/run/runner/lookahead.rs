//! Begins the next step before the current step's tokens are drawn. Invariant: the draws decide. Layers that ran with a wrong token, or for
//! a sequence that has ended, are removed from the states before anything else uses them.

use std::time::Instant;

use super::Runner;
use crate::engine::run::executor::{Fault, Work};
use crate::engine::schedule::plan::StepPlan;
use crate::engine::sequence::{GuessRate, Sequence, Sequences};
use crate::engine::stats::Gauges;
use crate::sampling::pending_draw::PendingDraw;

impl Runner {
    /// Returns the pending draws of a step if the next step may begin before them. Snapshots may take `unclaimed` bytes. `force` guesses
    /// tokens regardless of the rate of correct guesses.
    pub(in crate::engine) fn pending_draws(
        &self,
        plan: &StepPlan,
        sequences: &mut Sequences,
        unclaimed: u64,
        force: bool,
    ) -> Option<Vec<PendingDraw>> {
        let continues = |id: &u64| self.continues(sequences.get(*id));
        if !self.device.uses_lookahead()
            || !self.only_decodes(plan, sequences, unclaimed)
            || !plan.decode.iter().all(continues)
        {
            return None;
        }
        let shares = plan.decode.iter().map(|id| sequences.get(*id).guesses.share());
        if !force && shares.product::<f64>() < GuessRate::ENOUGH {
            for &id in &plan.decode {
                sequences.get_mut(id).guesses.decay();
            }
            return None;
        }
        let draws = plan.decode.iter().map(|&id| {
            let Sequence { sampler, history, .. } = sequences.get_mut(id);
            sampler.pending_draw(history)
        });
        draws.collect()
    }

    /// Returns true if a step is a single decode pass with one row for each running sequence.
    fn only_decodes(&self, plan: &StepPlan, sequences: &Sequences, unclaimed: u64) -> bool {
        let running = || sequences.iter().filter(|(_, it)| it.run.is_some()).map(|it| it.1);
        let Some(first) = running().next() else { return false };
        let exact = running().any(Sequence::exact);
        let most = self.device.most_rows(first.adapter(), exact).min(plan.decode.len());
        // Recurrent layers keep a snapshot of their state until a guess is confirmed.
        let snapshot = if self.device.is_recurrent() { self.checkpoint_bytes } else { 0 };
        plan.prefill.is_empty()
            && plan.drafts.is_empty()
            && running().count() == most
            && plan.decode.len() == most
            && running().all(|it| it.adapter() == first.adapter())
            && snapshot * most as u64 <= unclaimed
    }

    /// Returns true if a sequence will decode after the next step, with no other work in between.
    fn continues(&self, sequence: &Sequence) -> bool {
        let (length, Some(run)) = (sequence.history.len(), &sequence.run) else { return false };
        sequence.history.generated().len() + 1 < sequence.limits.max_tokens
            && length + 1 < sequence.reservation.tokens
            && run.state.seen() == run.state.offset()
            && self.device.shapes().to_drop(run.state.offset() + 1, sequence.limits.n_keep) == 0
            && self.device.variant(length) == self.device.variant(length + 2)
            && sequence.drafts.as_ref().is_none_or(|drafts| drafts.model.is_none())
            && !sequence.quarantined
    }

    /// Issues the first layers of the next step with guessed tokens, unless one of its sequences has ended.
    pub(in crate::engine) fn look_ahead(
        &mut self,
        draws: Option<&[PendingDraw]>,
        sequences: &mut Sequences,
        work: &mut Work,
    ) {
        let (Some(draws), Some(pass)) = (draws, work.only_decode()) else { return };
        let continues = |id: &u64| sequences.find(*id).is_some_and(|it| it.ended.is_none());
        if !pass.ids.iter().all(continues) {
            return;
        }
        match self.device.look_ahead(pass, draws, sequences) {
            Ok(lookahead) => {
                Gauges::add(&self.gauges.steps_ahead, usize::from(lookahead.is_some()));
                self.lookahead = lookahead;
            }
            Err(error) => work.check(Err(error)),
        }
    }

    /// Confirms the step that began early if the guesses match the drawn tokens; otherwise drops it. The logits were ready at `since`.
    pub(in crate::engine) fn confirm(&mut self, since: Instant, sequences: &mut Sequences) -> Option<Fault> {
        let lookahead = self.lookahead.as_mut()?;
        lookahead.since = since;
        let mut fits = false;
        if let Ok(tokens) = lookahead.tokens() {
            fits = true;
            for (&id, token) in lookahead.ids.iter().zip(tokens) {
                let drawn = sequences.find_mut(id).filter(|it| it.run.is_some() && it.ended.is_none());
                let right = drawn.is_some_and(|sequence| {
                    let right = sequence.history.tokens().last() == Some(token);
                    sequence.guesses.record(right);
                    right
                });
                fits &= right;
            }
        }
        if fits { None } else { self.drop_lookahead(sequences) }
    }

    /// Returns true if the step that began early is the planned one.
    pub(in crate::engine) fn has_begun(&self, plan: &StepPlan) -> bool {
        self.lookahead.as_ref().is_some_and(|it| it.ids == plan.decode && plan.drafts.is_empty())
    }

    /// Drops the step that began early without a rollback, when all states are dropped too.
    pub(in crate::engine) fn abandon_lookahead(&mut self) {
        self.lookahead = None;
    }

    /// Drops the step that began early and removes it from the states.
    pub(in crate::engine) fn drop_lookahead(&mut self, sequences: &mut Sequences) -> Option<Fault> {
        let lookahead = self.lookahead.take()?;
        Gauges::add(&self.gauges.steps_dropped, 1);
        // Wait, so that an error of this step is not attributed to other work.
        let outcome = lookahead.wait();
        for &id in &lookahead.ids {
            if let Some(sequence) = sequences.find_mut(id).filter(|it| it.run.is_some()) {
                sequence.truncate_to_history(&self.device);
            }
        }
        let message = outcome.err()?.to_string();
        Some(Fault { ids: lookahead.ids, message })
    }
}
