//! Draws tokens from the passes of a step.

use super::EngineLoop;
use crate::array::Rows;
use crate::engine::event::FinishReason;
use crate::engine::output::accept;
use crate::engine::prefix::share_whole_prompt;
use crate::engine::run::decode_pass::DecodePass;
use crate::engine::run::executor::{PrefillPass, Work};
use crate::engine::schedule::plan::Chunk;
use crate::engine::speculation::DraftRows;
use crate::engine::stats::Gauges;
use crate::error::Result;
use crate::model::Pass;
use crate::sampling::Draw;

impl EngineLoop {
    /// Draws from the passes that have finished, and accepts the tokens.
    pub(super) fn collect(&mut self, work: &mut Work) {
        let done = work.take_done();
        self.recover(done.fault);
        self.admission.record_times(done.prefill_time, done.decode_time.map(|it| it.1));
        if let Some((rows, seconds)) = done.decode_time {
            self.speculation.record_time(rows, seconds);
        }
        for pass in done.prefill {
            self.end_prefill(&pass);
        }
        for pass in done.decode {
            self.draw_decoded(&pass);
        }
    }

    /// Reads the hidden states of a computed prefill pass, and draws the first tokens at the ends of prompts.
    fn end_prefill(&mut self, done: &PrefillPass) {
        let PrefillPass { chunks, pass, logits } = done;
        let (mut rows, mut row, mut start) = (Vec::new(), 0, 0);
        for chunk in chunks {
            self.panics.single = Some(chunk.id);
            let draws = self.end_chunk(chunk, pass, start);
            start += chunk.range.len();
            self.panics.single = None;
            if draws {
                let ids = share_whole_prompt(chunk.id, &mut self.sequences, self.runner.device());
                rows.extend(ids.into_iter().chain([chunk.id]).map(|id| (id, row)));
            }
            row += usize::from(chunk.ends_prompt);
        }
        rows.sort_unstable();
        if let Some(logits) = logits {
            self.draw(&rows, logits);
        }
    }

    /// Counts and reads a computed chunk, which begins at row `start` of the pass. Returns true if a first token is to be drawn from its end.
    fn end_chunk(&mut self, chunk: &Chunk, pass: &Pass, start: usize) -> bool {
        let Some(sequence) = self.sequences.find_mut(chunk.id) else { return false };
        let in_prompt = chunk.range.end <= sequence.history.prompt_length();
        if in_prompt {
            Gauges::add(&self.gauges.prompt_tokens, chunk.range.len());
            if !chunk.ends_prompt {
                sequence.report_progress(chunk.range.end);
            }
        }
        if in_prompt
            && sequence.reader.is_on()
            && let Err(error) = self.runner.read(chunk, (pass, start), sequence)
        {
            self.end(chunk.id, FinishReason::Error(error.to_string()));
            return false;
        }
        sequence.drop_features_before(chunk.range.end);
        if chunk.ends_prompt && sequence.limits.max_tokens == 0 {
            sequence.mark_token();
            self.end(chunk.id, FinishReason::Length);
            return false;
        }
        chunk.ends_prompt
    }

    /// Draws from a decode pass: one token per sequence, and more while the draft matches.
    fn draw_decoded(&mut self, pass: &DecodePass) {
        let firsts = pass.first_rows();
        pass.store_hidden(&mut self.sequences);
        self.draw(&firsts, &pass.logits);
        for ((id, first), rows) in firsts.into_iter().zip(&pass.rows) {
            let Self { speculation, sequences, accepted, runner, panics, .. } = self;
            // The sequence may have failed.
            if sequences.find(id).is_some_and(|it| it.drafts.is_some()) {
                let rows = DraftRows { id, first, verified: rows - 1 };
                panics.single(id, || {
                    speculation.verify(rows, &pass.logits, sequences, accepted, runner.device());
                });
            }
        }
    }

    /// Draws a token for each sequence from the logits row paired with its id, and accepts it.
    fn draw(&mut self, rows: &[(u64, usize)], logits: &Rows) {
        match self.runner.draw(rows, logits, &mut self.sequences) {
            Ok(outcomes) => {
                for (id, outcome) in outcomes {
                    self.accept(id, outcome);
                }
            }
            Err(fault) => self.recover(Some(fault)),
        }
    }

    /// Accepts a drawn token. If drawing failed, only this sequence ends.
    fn accept(&mut self, id: u64, outcome: Result<Draw>) {
        match outcome {
            Ok(draw) => {
                let sequence = self.sequences.get_mut(id);
                sequence.quarantined = false;
                self.accepted.push_back(accept(id, sequence, draw));
                let length = sequence.history.len();
                self.runner.device().renew_variant(&mut sequence.running().state, length);
            }
            Err(error) => self.end(id, FinishReason::Error(error.to_string())),
        }
    }
}
