//! Verifies drafts. Invariant: a history never contains draft tokens. Positions computed for rejected tokens are removed from the state at
//! once.

use std::collections::VecDeque;

use super::Speculation;
use crate::array::Rows;
use crate::engine::output::{Accepted, accept};
use crate::engine::run::device::Device;
use crate::engine::sequence::{Sequence, Sequences};
use crate::engine::stats::Gauges;
use crate::sampling::{DrawRequest, Sampler};

/// The rows of one sequence in a decode pass: the first for its next token, the others for its draft.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct DraftRows {
    pub(in crate::engine) id: u64,
    pub(in crate::engine) first: usize,
    pub(in crate::engine) verified: usize,
}

impl Speculation {
    /// Draws further tokens for a sequence from the rows of its draft, as long as the draft matches the drawn tokens.
    pub(in crate::engine) fn verify(
        &mut self,
        rows: DraftRows,
        logits: &Rows,
        sequences: &mut Sequences,
        accepted: &mut VecDeque<Accepted>,
        device: &Device,
    ) {
        let DraftRows { id, first, verified } = rows;
        let sequence = sequences.get_mut(id);
        let Some(drafts) = &mut sequence.drafts else { return };
        let draft = std::mem::take(&mut drafts.draft);
        let (mut right, mut ended) = (0, false);
        while let Some(token) = draft.tokens.get(right)
            && right <= verified
            && sequence.history.tokens().last() == Some(token)
        {
            right += 1;
            // The draft token after the verified ones can still be compared.
            if right <= verified && !self.draw_next((id, first + right), sequence, logits, accepted) {
                ended = true;
                break;
            }
        }
        if verified > 0 {
            sequence.truncate_to_history(device);
            let right = right.min(verified);
            Gauges::add(&self.gauges.drafted, verified);
            Gauges::add(&self.gauges.accepted, right);
            if let Some(drafts) = &mut sequence.drafts {
                drafts.counts.drafted += verified;
                drafts.counts.accepted += right;
            }
        }
        let known = if ended { right } else { draft.tokens.len().min(verified + 1) };
        self.policy.record_draft(id, draft.kind, known, right);
    }

    /// Draws one more token for a sequence. Returns false if its text has ended or the draw fails.
    fn draw_next(
        &mut self,
        (id, row): (u64, usize),
        sequence: &mut Sequence,
        logits: &Rows,
        accepted: &mut VecDeque<Accepted>,
    ) -> bool {
        if let Some(newest) = accepted.iter_mut().rfind(|it| it.id == id) {
            newest.decode(sequence);
        }
        if sequence.ended.is_some() {
            return false;
        }
        let Sequence { sampler, history, .. } = sequence;
        let mut request = [DrawRequest { row, sampler, history }];
        match Sampler::draw(logits, &mut request, &mut self.scratch).as_deref_mut() {
            Ok([Ok(draw)]) => {
                let draw = draw.clone();
                accepted.push_back(accept(id, sequence, draw));
                true
            }
            // A later step hits the same error, after the earlier tokens are emitted.
            _ => false,
        }
    }
}
