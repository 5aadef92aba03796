//! The steps of an encoder: texts of similar length share a pass.

use std::time::{Duration, Instant};

use super::capacity::EncoderCapacity;
use super::grouping::{Turns, Waiting};
use super::pass_time::PassTime;
use super::text::Text;
use crate::engine::admission::Submission;
use crate::engine::event::FinishReason;
use crate::engine::jobs::{Ended, Jobs, Worker};
use crate::engine::schedule::{Need, Ticket};
use crate::error::Result;
use crate::model::{PoolRow, TextEncoder, TextTokens};

/// The maximum number of texts from which a pass is chosen. More give less padding.
pub(in crate::engine) const MAX_RUNNING: usize = 256;

/// Computes the results of texts: an encoder with its weights, or a fake one in a test.
pub(in crate::engine) trait Encoder {
    /// Returns the concatenated vectors of each text.
    fn vectors(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>>;

    /// Returns the logits of each text.
    fn logits(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>>;

    /// Returns true if the head reads the mean of all states instead of the first one.
    fn head_reads_mean(&self) -> bool;
}

impl Encoder for TextEncoder {
    fn vectors(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        self.pooled(&self.encode(texts)?, rows)?.wait()
    }

    fn logits(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        Self::logits(self, &self.encode(texts)?, rows)?.wait()
    }

    fn head_reads_mean(&self) -> bool {
        self.classifier_reads_mean() == Some(true)
    }
}

/// An encoder, and the choice of the texts of its passes.
pub(in crate::engine) struct EncoderWorker<E> {
    encoder: E,
    capacity: EncoderCapacity,
    turns: Turns,
    pass_time: PassTime,
    /// The texts of the current pass.
    pass: Vec<u64>,
}

impl<E: Encoder> EncoderWorker<E> {
    pub(in crate::engine) fn new(encoder: E, capacity: EncoderCapacity) -> Self {
        Self { encoder, capacity, turns: Turns::default(), pass_time: PassTime::default(), pass: Vec::new() }
    }

    /// Chooses the texts of the next pass.
    fn choose(&mut self, jobs: &mut Jobs<Text>, now: Duration) {
        let running: Vec<Waiting> = jobs.running().map(|(id, text)| text.view(id)).collect();
        let most = |tokens| self.capacity.texts(tokens).min(self.pass_time.texts(tokens));
        self.pass = self.turns.next(&running, most, now);
        for id in &self.pass {
            if let Some(text) = jobs.get_mut(*id) {
                text.start();
            }
        }
    }

    /// Computes the results of the pass.
    fn compute(&mut self, jobs: &Jobs<Text>) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<&Text> = self.pass.iter().filter_map(|id| jobs.get(*id)).collect();
        let Some(first) = texts.first() else { return Ok(Vec::new()) };
        let tokens: Vec<TextTokens> = texts.iter().map(|text| text.tokens()).collect();
        let reads_mean = self.encoder.head_reads_mean();
        let rows: Vec<Vec<PoolRow>> = texts.iter().map(|text| text.pool_rows(reads_mean)).collect();
        let begin = Instant::now();
        let results = if first.embed.is_some() {
            self.encoder.vectors(&tokens, &rows)?
        } else {
            self.encoder.logits(&tokens, &rows)?
        };
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        self.pass_time.record(longest * texts.len(), begin.elapsed());
        Ok(results)
    }

    /// Sends the results of the pass and ends its texts. If a result of a shared pass is not finite, its text runs again in a separate pass:
    /// another text or the padding may be the cause.
    fn deliver(&mut self, jobs: &mut Jobs<Text>, results: Vec<Vec<f32>>) -> Ended {
        let pass = std::mem::take(&mut self.pass);
        let is_shared = pass.len() > 1;
        let mut ended = Ended::new();
        for (id, numbers) in pass.into_iter().zip(results) {
            let Some(text) = jobs.get_mut(id) else { continue };
            match text.deliver(numbers) {
                Ok(()) => ended.push((id, FinishReason::Length)),
                Err(_) if is_shared => text.quarantined = true,
                Err(error) => ended.push((id, FinishReason::Error(error.to_string()))),
            }
        }
        ended
    }

    /// Ends the text of a failed pass. Several texts are repeated one by one, so that only the text at fault ends.
    fn fail(&mut self, jobs: &mut Jobs<Text>, message: &str) -> Ended {
        let pass = std::mem::take(&mut self.pass);
        if let [id] = pass[..] {
            return vec![(id, FinishReason::Error(message.to_owned()))];
        }
        for id in pass {
            if let Some(text) = jobs.get_mut(id) {
                text.quarantined = true;
            }
        }
        Ended::new()
    }
}

impl<E: Encoder> Worker for EncoderWorker<E> {
    type Job = Text;

    fn accept(&self, submission: Submission, ticket: Ticket, arrived: Duration) -> Result<(Text, Need)> {
        let text = Text::new(submission, ticket, arrived);
        let need = self.capacity.need(text.len());
        Ok((text, need))
    }

    fn step(&mut self, jobs: &mut Jobs<Text>, now: Duration) -> Ended {
        self.choose(jobs, now);
        match self.compute(jobs) {
            Ok(results) => self.deliver(jobs, results),
            Err(error) => self.fail(jobs, &error.to_string()),
        }
    }

    fn panicked(&mut self, jobs: &mut Jobs<Text>, message: &str) -> Ended {
        self.fail(jobs, message)
    }
}

#[cfg(test)]
mod tests;
