//! The part of the loop that verifies drafts. Invariant: a history never holds a draft; what a pass computed for tokens that were not
//! drawn is cut from the state at once.

use super::EngineLoop;
use crate::array::Rows;
use crate::cache::Rollback;
use crate::engine::drafters::hidden_rows::HiddenRows;
use crate::engine::output::accept;
use crate::engine::run::decode_pass::DecodePass;
use crate::engine::sequence::Sequence;
use crate::engine::stats::Gauges;
use crate::sampling::{DrawRequest, Sampler};

impl EngineLoop {
    /// Draws from a decode pass: a token for each sequence, and more as long as its draft was right.
    pub(super) fn draw_decoded(&mut self, pass: &DecodePass) {
        let mut end = 0;
        let firsts = pass.rows.iter().map(|rows| {
            end += rows;
            end - rows
        });
        let firsts: Vec<(u64, usize)> = pass.ids.iter().copied().zip(firsts).collect();
        self.keep_hidden(pass, &firsts);
        self.draw(&firsts, &pass.logits);
        for ((id, first), rows) in firsts.into_iter().zip(&pass.rows) {
            // It may have failed.
            if self.sequences.find(id).is_some_and(|it| it.drafts.is_some()) {
                self.panics.alone = Some(id);
                self.verify(id, first, rows - 1, &pass.logits);
                self.panics.alone = None;
            }
        }
    }

    /// Keeps the hidden states of a pass for heads that draft. Those of drafts that are wrong are replaced by the next pass's.
    fn keep_hidden(&mut self, pass: &DecodePass, firsts: &[(u64, usize)]) {
        let Some(hidden) = &pass.hidden else { return };
        for ((id, first), rows) in firsts.iter().zip(&pass.rows) {
            // It may have ended while the pass ran.
            let Some(sequence) = self.sequences.find_mut(*id) else { continue };
            if sequence.is_drafted_by_head() {
                let newest = sequence.history.len() - 1;
                let kept = &mut sequence.running().hidden;
                let rows = hidden.rows(*first..first + rows);
                // Without them there are no drafts for a while.
                if rows.and_then(|rows| kept.add(newest, rows)).is_err() {
                    *kept = HiddenRows::default();
                }
            }
        }
    }

    /// Draws the tokens behind the one that was just drawn for a sequence, from the rows behind `first`, as long as the first `verified`
    /// tokens of its draft are those that were drawn.
    fn verify(&mut self, id: u64, first: usize, verified: usize, logits: &Rows) {
        let Some(drafts) = &mut self.sequences.get_mut(id).drafts else { return };
        let draft = std::mem::take(&mut drafts.draft);
        let (mut right, mut ended) = (0, false);
        while let Some(token) = draft.tokens.get(right)
            && right <= verified
            && self.sequences.get(id).history.tokens().last() == Some(token)
        {
            right += 1;
            // The token behind those that were verified is known all the same.
            if right <= verified && !self.draw_next(id, first + right, logits) {
                ended = true;
                break;
            }
        }
        if verified > 0 {
            self.cut(id);
            let accepted = right.min(verified);
            Gauges::add(&self.gauges.drafted, verified);
            Gauges::add(&self.gauges.accepted, accepted);
            if let Some(drafts) = &mut self.sequences.get_mut(id).drafts {
                drafts.counts.drafted += verified;
                drafts.counts.accepted += accepted;
            }
        }
        let known = if ended { right } else { draft.tokens.len().min(verified + 1) };
        self.scheduler.record_draft(id, draft.kind, known, right);
    }

    /// Draws one more token for a sequence, unless its text ended with the last one; false if there is no more.
    fn draw_next(&mut self, id: u64, row: usize, logits: &Rows) -> bool {
        let Self { sequences, scratch, accepted, .. } = self;
        let sequence = sequences.get_mut(id);
        if let Some(newest) = accepted.iter_mut().rfind(|it| it.id == id) {
            newest.decode(sequence);
        }
        if sequence.ended.is_some() {
            return false;
        }
        let Sequence { sampler, history, .. } = sequence;
        match Sampler::draw(logits, &mut [DrawRequest { row, sampler, history }], scratch).as_deref_mut() {
            Ok([Ok(draw)]) => {
                let draw = draw.clone();
                accepted.push_back(accept(id, sequence, draw));
                true
            }
            // A step of its own meets the same error, after the tokens before it are emitted.
            _ => false,
        }
    }

    /// Cuts a sequence's state back to its history.
    pub(super) fn cut(&mut self, id: u64) {
        let sequence = self.sequences.get_mut(id);
        let length = sequence.history.len();
        let state = &mut sequence.running().state;
        // A state that cannot be cut there is computed again from where it can.
        if state.rollback((length - 1).min(state.offset())) == Rollback::StartOver {
            *state = self.device.new_state(length);
        }
        state.trace(false);
    }
}
