//! The part of the loop that runs ahead. Invariant: what is drawn decides; layers that ran with another token, or for a sequence that has
//! ended, are cut from the states before anything else is done with them.

use std::time::Instant;

use super::EngineLoop;
use crate::engine::run::ahead::Ahead;
use crate::engine::run::executor::Work;
use crate::engine::schedule::plan::StepPlan;
use crate::engine::sequence::GuessRate;
use crate::engine::sequence::Sequence;
use crate::engine::stats::Gauges;
use crate::sampling::outlook::Outlook;

impl EngineLoop {
    /// How the tokens of a step will be drawn, if the step behind it may begin before they are.
    pub(super) fn outlook(&mut self, plan: &StepPlan) -> Option<Vec<Outlook>> {
        let free = self.free_for_prefixes();
        let sequence = |id: &u64| self.sequences.get(*id);
        if !self.device.runs_ahead()
            || !self.only_decodes(plan, free)
            || !plan.decode.iter().all(|id| self.goes_on(sequence(id)))
        {
            return None;
        }
        let shares = plan.decode.iter().map(|id| sequence(id).guesses.share());
        if !self.drafters.always && shares.product::<f64>() < GuessRate::ENOUGH {
            for &id in &plan.decode {
                self.sequences.get_mut(id).guesses.forget();
            }
            return None;
        }
        let outlooks = plan.decode.iter().map(|&id| {
            let Sequence { sampler, history, .. } = self.sequences.get_mut(id);
            sampler.outlook(history)
        });
        outlooks.collect()
    }

    /// Whether a step is one pass with a row for each of the sequences that run. Prefixes may take `free` bytes.
    fn only_decodes(&self, plan: &StepPlan, free: u64) -> bool {
        let running = || self.sequences.iter().filter(|(_, it)| it.run.is_some()).map(|it| it.1);
        let Some(first) = running().next() else { return false };
        let exact = running().any(Sequence::exact);
        let most = self.device.most_rows(first.adapter(), exact).min(plan.decode.len());
        // What recurrent layers keep while a guess may be wrong.
        let kept = if self.device.is_recurrent() { self.capacity.checkpoint_bytes() } else { 0 };
        let room = free.saturating_sub(self.prefixes.bytes(&self.sequences));
        plan.prefill.is_empty()
            && plan.drafts.is_empty()
            && running().count() == most
            && plan.decode.len() == most
            && running().all(|it| it.adapter() == first.adapter())
            && kept * most as u64 <= room
    }

    /// Whether a sequence has a step behind the next one, and nothing has to be done before that.
    fn goes_on(&self, sequence: &Sequence) -> bool {
        let (length, Some(run)) = (sequence.history.len(), &sequence.run) else { return false };
        sequence.history.generated().len() + 1 < sequence.limits.max_tokens
            && length + 1 < sequence.reservation.tokens
            && run.state.seen() == run.state.offset()
            && self.device.shapes().to_drop(run.state.offset() + 1, sequence.limits.keep) == 0
            && self.device.variant(length) == self.device.variant(length + 2)
            && sequence.drafts.as_ref().is_none_or(|drafts| drafts.model.is_none())
            && !sequence.quarantined
    }

    /// Issues the first layers of the next step, if the tokens of this one have an outlook and none of its sequences has ended.
    pub(super) fn run_ahead(&mut self, rows: Option<&[Outlook]>, work: &mut Work) {
        let (Some(rows), Some(pass)) = (rows, work.only_decode()) else { return };
        let goes_on = |id: &u64| self.sequences.find(*id).is_some_and(|it| it.ended.is_none());
        if !pass.ids.iter().all(goes_on) {
            return;
        }
        match self.device.run_ahead(pass, rows, &mut self.sequences) {
            Ok(ahead) => {
                Gauges::add(&self.gauges.steps_ahead, usize::from(ahead.is_some()));
                self.ahead = ahead;
            }
            Err(error) => work.check(Err(error)),
        }
    }

    /// Keeps what ran ahead if the tokens that were drawn are those that were guessed. The step's logits were there at `since`.
    pub(super) fn settle(&mut self, since: Instant) {
        let Some(ahead) = &mut self.ahead else { return };
        ahead.since = since;
        let mut fits = false;
        if let Ok(tokens) = ahead.tokens() {
            fits = true;
            for (&id, token) in ahead.ids.iter().zip(tokens) {
                let drawn = self.sequences.find_mut(id).filter(|it| it.run.is_some() && it.ended.is_none());
                let right = drawn.is_some_and(|sequence| {
                    let right = sequence.history.tokens().last() == Some(token);
                    sequence.guesses.record(right);
                    right
                });
                fits &= right;
            }
        }
        if !fits {
            self.drop_ahead();
        }
    }

    /// Takes what ran ahead, if it is what a plan decodes; otherwise drops it. A sequence that this stops leaves the plan.
    pub(super) fn take_ahead(&mut self, plan: &mut StepPlan) -> Option<Ahead> {
        let fits = |ahead: &Ahead| ahead.ids == plan.decode && plan.drafts.is_empty();
        if !self.ahead.as_ref().is_some_and(fits) {
            self.drop_ahead();
            let runs = |id: u64| self.sequences.find(id).is_some_and(|it| it.run.is_some());
            plan.decode.retain(|id| runs(*id));
            plan.drafts.retain(|(id, _)| runs(*id));
        }
        self.ahead.take()
    }

    /// Cuts what ran ahead from the states.
    pub(super) fn drop_ahead(&mut self) {
        let Some(ahead) = self.ahead.take() else { return };
        Gauges::add(&self.gauges.steps_dropped, 1);
        // It must not fail beside other work.
        let outcome = ahead.wait();
        for &id in &ahead.ids {
            if self.sequences.find(id).is_some_and(|it| it.run.is_some()) {
                self.cut(id);
            }
        }
        if let Err(error) = outcome {
            self.recover(&ahead.ids, &error.to_string());
        }
    }
}
