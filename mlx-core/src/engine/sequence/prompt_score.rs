//! Log-probabilities of a prompt's own tokens, taken while it is prefilled.

use std::ops::Range;

use async_channel::Sender;
use chat_format::text::Detokenizer;
use mlx_rs::Array;

use crate::array::{Rows, slice_axis};
use crate::engine::event::{Event, PromptToken};
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{Scratch, TokenLogprob, score};

/// Rows that get logits at once: a vocabulary's width times this is all the memory that scoring takes.
const ROWS: usize = 32;

/// Scores the tokens of a prompt while its positions are computed.
pub(in crate::engine) struct PromptScore {
    /// Alternatives to report with each token.
    top: usize,
    detokenizer: Detokenizer,
    sink: Sender<Event>,
    /// The next token to report.
    next: usize,
}

impl PromptScore {
    pub(in crate::engine) fn new(top: usize, detokenizer: Detokenizer, sink: Sender<Event>) -> Self {
        Self { top, detokenizer, sink, next: 0 }
    }

    /// Reports the tokens of `prompt` that the positions `range`, whose last hidden state is `hidden`, foretell.
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
        // The row of position p foretells token p + 1; a replay passes over what has been reported.
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
        // It fails if the receiver was dropped; the next step cancels the request then.
        self.sink.try_send(Event::Prompt(PromptToken { id, text, logprob })).ok();
    }
}
