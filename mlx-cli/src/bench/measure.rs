//! Measures one case: concurrent requests that go through the engine like a client's.

use std::time::Instant;

use mlx_core::array;
use mlx_core::engine::{DraftCounts, Engine, FinishReason, Finished, Generation, RequestOptions};
use mlx_core::sampling::SamplingOptions;

use crate::exit_code::Failure;
use crate::terminal;

/// The shape of one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// Tokens per prompt.
    pub(crate) length: usize,
    /// Concurrent requests.
    pub(crate) batch: usize,
    /// Tokens per answer.
    pub(crate) generate: usize,
}

/// The result of several runs of one case.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(super) case: Case,
    /// Prompt tokens per second.
    pub(super) prefill: Spread,
    /// Generated tokens per second.
    pub(super) decode: Spread,
    /// Median time to the first token, in seconds.
    pub(super) first: Spread,
    /// Peak bytes of arrays: of this case, or since the start of the engine's process if it has one.
    pub(super) peak: u64,
    /// Peak bytes of arrays on each worker, since the start of its process.
    pub(super) worker_peaks: Vec<u64>,
    /// Draft tokens that were verified, and those accepted, over all runs.
    pub(super) drafts: DraftCounts,
}

/// A median and the range of the runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (last, half) = (values.len().saturating_sub(1), values.len() / 2);
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(half.saturating_sub(1)), at(half))
        } else {
            at(half)
        };
        Self { median, min: at(0), max: at(last) }
    }
}

impl Measurement {
    pub(crate) fn run(engine: &Engine, case: Case, repeat: usize) -> Result<Self, Failure> {
        let (mut prefill, mut decode, mut first) = (Vec::new(), Vec::new(), Vec::new());
        let mut drafts = DraftCounts::default();
        array::reset_peak_memory()?;
        for round in 0..repeat {
            let prompts = run_once(engine, Case { generate: 1, ..case }, 2 * round)?;
            let full = run_once(engine, case, 2 * round + 1)?;
            prefill.push((case.batch * case.length) as f64 / prompts.seconds);
            // Noise may shorten the difference, but decoding takes at least the time from an answer's first token to its last.
            let added = (full.seconds - prompts.seconds).max(full.shortest);
            decode.push((case.batch * (case.generate - 1)) as f64 / added);
            first.push(prompts.first);
            drafts.drafted += full.drafts.drafted;
            drafts.accepted += full.drafts.accepted;
        }
        let [prefill, decode, first] = [prefill, decode, first].map(Spread::from_values);
        let stats = engine.stats();
        // An engine in a separate process leaves no arrays here.
        let peak = (array::peak_memory()? as u64).max(stats.peak_bytes);
        Ok(Self { case, prefill, decode, first, peak, worker_peaks: stats.worker_peak_bytes, drafts })
    }
}

/// The times of one run.
pub(super) struct Run {
    /// Seconds from the first request to the last token.
    pub(super) seconds: f64,
    /// Seconds until half of the requests had their first token.
    first: f64,
    /// The shortest time from the first to the last token of one answer, in seconds.
    shortest: f64,
    drafts: DraftCounts,
}

/// Runs a case once. No two rounds share a prompt.
pub(super) fn run_once(engine: &Engine, case: Case, round: usize) -> Result<Run, Failure> {
    let options = RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(case.generate),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let vocabulary = engine.spec().vocab_size;
    let prompt = |index: usize| prompt(case.length, round * 1009 + index, vocabulary);
    let requests = (0..case.batch).map(|index| engine.request(prompt(index), &options));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    let generations = engine.submit_all(requests)?;
    let ended = generations.into_iter().map(end).collect::<Result<Vec<_>, _>>()?;
    let seconds = begin.elapsed().as_secs_f64();
    let first = ended.iter().map(|finished| finished.timings.queue + finished.timings.prefill);
    let shortest = ended.iter().map(|finished| finished.timings.decode).fold(f64::INFINITY, f64::min);
    let counts = ended.iter().map(|finished| finished.usage.drafts);
    let drafts = counts.fold(DraftCounts::default(), |sum, it| DraftCounts {
        drafted: sum.drafted + it.drafted,
        accepted: sum.accepted + it.accepted,
    });
    Ok(Run { seconds, first: Spread::from_values(first.collect()).median, shortest, drafts })
}

/// Waits for an answer to finish.
fn end(generation: Generation) -> Result<Finished, Failure> {
    let finished = generation.finish(|_| Ok::<(), Failure>(()))?;
    if let FinishReason::Error(message) = &finished.reason {
        terminal::note(&format!("error: {message}"));
        return Err(Failure::Reported);
    }
    Ok(finished)
}

/// Returns a synthetic prompt.
pub(crate) fn prompt(length: usize, number: usize, vocabulary: usize) -> Vec<u32> {
    let range = vocabulary.saturating_sub(10).max(1);
    (0..length)
        .map(|index| ((index * 7919 + number * 104_729 + 11) % range + 5).min(vocabulary - 1) as u32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = |values: &[f64]| Spread::from_values(values.to_vec());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(spread(&[7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn prompts_differ_and_are_in_the_vocabulary() {
        assert_ne!(prompt(64, 0, 320), prompt(64, 1, 320));
        for vocabulary in [1, 5, 12, 320] {
            assert!(prompt(999, 3, vocabulary).iter().all(|&token| (token as usize) < vocabulary));
        }
    }
}
