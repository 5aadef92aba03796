//! Log-probabilities of the prompt's own tokens, computed during the prefill.

use std::ops::Range;

use chat_format::text::Detokenizer;
use mlx_rs::Array;

use crate::array::{Rows, slice_axis};
use crate::engine::event::{Event, PromptToken};
use crate::engine::outlet::Sink;
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{Scratch, TokenLogprob, score};

/// The number of rows that get logits at once. Scoring needs memory for this many rows of the vocabulary's width.
const ROWS: usize = 32;

/// Scores the tokens of a prompt while its positions are computed.
pub(in crate::engine) struct PromptScore {
    /// The number of alternatives to report with each token.
    top: usize,
    detokenizer: Detokenizer,
    sink: Sink,
    /// The next token to report.
    next: usize,
}

impl PromptScore {
    pub(in crate::engine) fn new(top: usize, detokenizer: Detokenizer, sink: Sink) -> Self {
        Self { top, detokenizer, sink, next: 0 }
    }

    /// Reports the tokens of `prompt` that the positions `range` predict; `hidden` are their last hidden states.
    pub(in crate::engine) fn extend(
        &mut self,
        model: &dyn Model,
        hidden: &Array,
        range: Range<usize>,
        prompt: &[u32],
        scratch: &mut Scratch,
    ) -> Result<()> {
        if self.next == 0 {
            self.report(prompt, None);
        }
        // The row of position p predicts token p + 1. A replay skips tokens that were already reported.
        let last = range.end.min(prompt.len() - 1);
        let mut position = range.start.max(self.next - 1);
        while position < last {
            let end = last.min(position + ROWS);
            let rows = slice_axis(hidden, 0, (position - range.start) as i32, (end - range.start) as i32)?;
            let logits = Rows::new(&model.logits(&rows)?)?;
            for row in logits.values()?.chunks_exact(logits.width()) {
                let logprob = score(row, prompt[self.next], self.top, scratch)?;
                self.report(prompt, Some(logprob));
            }
            position = end;
        }
        Ok(())
    }

    fn report(&mut self, prompt: &[u32], logprob: Option<TokenLogprob>) {
        let id = prompt[self.next];
        self.next += 1;
        let mut text = self.detokenizer.push(id);
        if self.next == prompt.len() {
            text.push_str(&self.detokenizer.finish());
        }
        // Sending fails if the receiver was dropped; the next step then cancels the request.
        self.sink.send(Event::Prompt(PromptToken { id, text, logprob }));
    }
}
