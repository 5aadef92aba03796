//! A text that an encoder works on, from its request to its result.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::grouping::Waiting;
use crate::engine::admission::Submission;
use crate::engine::event::{Event, FinishReason, Finished};
use crate::engine::jobs::Job;
use crate::engine::options::Exactness;
use crate::engine::outlet::Outlet;
use crate::engine::schedule::Ticket;
use crate::engine::usage::{Timings, Usage};
use crate::error::{Error, Result};
use crate::model::{PoolRow, TextTokens};
use crate::sentence_transformers::{Pooling, Poolings};

/// A text of a request.
pub(in crate::engine) struct Text {
    ids: Vec<u32>,
    second: Option<usize>,
    /// The poolings of its vector and the first token that is pooled; `None` for logits.
    pub(super) embed: Option<(Poolings, usize)>,
    exactness: Exactness,
    outlet: Outlet,
    ticket: Ticket,
    /// The time at which it joined the queue, since the start of the engine.
    arrived: Duration,
    submitted: Instant,
    started: Option<Instant>,
    /// True if a pass that included it failed. It then runs alone, so that a second failure shows that it is at fault.
    pub(super) quarantined: bool,
}

impl Text {
    pub(super) fn new(submission: Submission, ticket: Ticket, arrived: Duration) -> Self {
        let Submission { request, outlet } = submission;
        Self {
            ids: request.prompt,
            second: request.second,
            embed: request.embed,
            exactness: request.exactness,
            outlet,
            ticket,
            arrived,
            submitted: Instant::now(),
            started: None,
            quarantined: false,
        }
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the tokens for a pass.
    pub(super) fn tokens(&self) -> TextTokens<'_> {
        TextTokens { ids: &self.ids, second: self.second }
    }

    /// Returns true if it shares no pass: its result must have the same bits in any company, or a pass that included it failed.
    fn is_alone(&self) -> bool {
        self.quarantined || self.exactness == Exactness::Bit
    }

    /// Returns the facts that the choice of a pass depends on.
    pub(super) fn view(&self, id: u64) -> Waiting {
        Waiting {
            id,
            tokens: self.len(),
            ticket: self.ticket,
            arrived: self.arrived,
            poolings: self.embed.map(|(poolings, _)| poolings),
            is_alone: self.is_alone(),
        }
    }

    /// Records the start of its pass.
    pub(super) fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
        self.outlet.sink.start();
    }

    /// Returns the vectors to pool. A head reads the mean of all states, or the first one.
    pub(super) fn pool_rows(&self, classifier_reads_mean: bool) -> Vec<PoolRow> {
        let length = self.ids.len();
        match self.embed {
            Some((poolings, first)) => {
                poolings.modes().map(|mode| pool_row(mode, first.min(length - 1)..length)).collect()
            }
            None if classifier_reads_mean => vec![pool_row(Pooling::Mean, 0..length)],
            None => vec![pool_row(Pooling::Cls, 0..length)],
        }
    }

    /// Sends the result. It is an error if a number of it is not finite.
    pub(super) fn deliver(&self, numbers: Vec<f32>) -> Result<()> {
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(Error::NotFinite(if self.embed.is_some() { "a hidden state" } else { "a score" }));
        }
        let event = if self.embed.is_some() { Event::Embedding(numbers) } else { Event::Scores(numbers) };
        // The client may have disconnected, which is not an error.
        self.outlet.sink.send(event);
        Ok(())
    }
}

impl Job for Text {
    fn is_cancelled(&self) -> bool {
        self.outlet.canceller.is_cancelled() || self.outlet.sink.is_closed()
    }

    /// A text has no state between passes.
    fn reset(&mut self) {}

    fn finish(self, reason: FinishReason) -> (Usage, Timings) {
        let usage = Usage { prompt_tokens: self.ids.len(), ..Usage::default() };
        let started = self.started.unwrap_or_else(Instant::now);
        let prefill = self.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        let queue = started.duration_since(self.submitted).as_secs_f64();
        let timings = Timings { queue, prefill, decode: 0.0 };
        let done = Finished { reason, delta: String::new(), usage, timings, exactness: self.exactness };
        // The client may have disconnected, which is not an error.
        self.outlet.sink.send(Event::Done(done));
        (usage, timings)
    }
}

/// Returns the factors of the hidden states in `range`, or that range.
fn pool_row(mode: Pooling, range: Range<usize>) -> PoolRow {
    let count = range.len() as f32;
    let all = |factor: f32| (0..range.end).map(move |place| if place < range.start { 0.0 } else { factor });
    let only = |one: usize| (0..range.end).map(move |place| if place == one { 1.0 } else { 0.0 });
    PoolRow::Sum(match mode {
        Pooling::Max => return PoolRow::Max(range),
        Pooling::Cls => only(range.start).collect(),
        Pooling::Last => only(range.end - 1).collect(),
        Pooling::Mean => all(count.recip()).collect(),
        Pooling::MeanSqrtLen => all(count.sqrt().recip()).collect(),
        Pooling::WeightedMean => {
            let sum: usize = range.clone().map(|place| place + 1).sum();
            all(1.0).enumerate().map(|(place, factor)| factor * (place + 1) as f32 / sum as f32).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolings_are_factors_of_the_states_after_the_prompt() {
        let row = |mode| match pool_row(mode, 1..4) {
            PoolRow::Sum(factors) => factors,
            PoolRow::Max(range) => range.map(|place| place as f32).collect(),
        };
        assert_eq!(row(Pooling::Cls), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(row(Pooling::Last), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(row(Pooling::Mean), [0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
        assert_eq!(row(Pooling::WeightedMean), [0.0, 2.0 / 9.0, 3.0 / 9.0, 4.0 / 9.0]);
        assert_eq!(row(Pooling::Max), [1.0, 2.0, 3.0]);
    }
}
