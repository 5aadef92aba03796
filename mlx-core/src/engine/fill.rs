//! Fills: prompts, and tokens that a preempted sequence had generated, run through the model between decode steps. A pass may
//! stop after any layer, so that no prompt holds up the streams for longer than the pace allows.

use std::time::Instant;

use super::decode::Drawn;
use super::pace::work;
use super::request::FinishReason;
use super::runner::Engine;
use super::sequence::{Next, Sequence};
use super::stats::Gauges;
use crate::array::Rows;
use crate::error::Result;
use crate::model::Pass;
use crate::sampling::Sampler;

/// What was issued in one turn.
pub(super) struct Fills {
    ids: Vec<u64>,
    /// Ends of prompts, from which first tokens are to be drawn.
    ends: Vec<(u64, Rows)>,
    work: f64,
    started: Instant,
}

/// What became of a pass that was advanced.
enum Advanced {
    /// It has layers left, or its sequence has more to fill.
    More,
    /// The end of the prompt.
    Prompt(Option<Rows>),
}

impl Engine {
    /// Issues as much as may run before the next step; with `streams` that wait for it, that is what the pace allows, and
    /// without them one pass.
    pub(super) fn start_fills(&mut self, streams: bool) -> Fills {
        self.follow_leaders();
        let mut fills = Fills { ids: Vec::new(), ends: Vec::new(), work: 0.0, started: Instant::now() };
        let allowance = self.pace.allowance();
        while let Some(id) = self.next_to_fill() {
            let limit = if streams { Some(allowance - fills.work) } else { None };
            let issued = match self.fill(id, limit, fills.ids.is_empty()) {
                Ok(Some((work, advanced))) => {
                    fills.work += work;
                    if let Advanced::Prompt(end) = advanced {
                        self.prompt_ended(id, end, &mut fills);
                    }
                    true
                }
                Ok(None) => false,
                Err(error) => {
                    self.end(id, FinishReason::Error(error.to_string()));
                    continue;
                }
            };
            if !issued {
                break;
            }
            self.last_filled = id;
            fills.ids.push(id);
            if !streams {
                break;
            }
        }
        fills
    }

    /// The sequence in the middle of a pass, or the next in turn: several prompts advance side by side, a chunk each.
    fn next_to_fill(&self) -> Option<u64> {
        let fills = |(_, sequence): &(&u64, &Sequence)| {
            let leads = sequence.run.as_ref().is_some_and(|run| run.leader.is_none());
            leads && matches!(sequence.next(), Next::Prompt(_) | Next::Replay(_))
        };
        let amid =
            |(_, sequence): &(&u64, &Sequence)| sequence.run.as_ref().is_some_and(|run| run.pass.is_some());
        let of = |(&id, _): (&u64, &Sequence)| id;
        self.sequences
            .iter()
            .find(amid)
            .map(of)
            .or_else(|| self.sequences.range(self.last_filled + 1..).find(fills).map(of))
            .or_else(|| self.sequences.iter().find(fills).map(of))
    }

    /// Issues layers of a sequence's pass that cost at most `limit`; the `first` of a turn gets one layer whatever it costs, so
    /// that streams cannot starve a prompt. None if nothing fits.
    fn fill(&mut self, id: u64, limit: Option<f64>, first: bool) -> Result<Option<(f64, Advanced)>> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(None) };
        let next = sequence.next();
        let Some(run) = &mut sequence.run else { return Ok(None) };
        let offset = run.cache.offset();
        let range = match next {
            Next::Prompt(length) => self.device.chunks.next(offset, length),
            Next::Replay(length) => self.device.replay_range(offset..length),
            Next::Step | Next::Nothing => return Ok(None),
        };
        let layer_work = work(range.len(), range.end);
        let layers = match limit {
            None => self.device.layers(),
            Some(limit) => ((limit / layer_work) as usize).max(usize::from(first)),
        };
        if layers == 0 {
            return Ok(None);
        }
        let mut pass = match (run.pass.take(), next) {
            (Some(pass), _) => pass,
            (None, Next::Replay(_)) => {
                self.device.begin_replay(&sequence.history.tokens()[range.clone()], offset)?
            }
            (None, _) => self.device.begin_chunk(&sequence.history.tokens()[range.clone()], offset)?,
        };
        let before = pass.layer();
        let prompt = sequence.history.prompt_length();
        let ends_prompt = matches!(next, Next::Prompt(_)) && range.end == prompt;
        let draws = ends_prompt && sequence.history.generated().is_empty();
        let scores = sequence.prompt_score.is_some() && matches!(next, Next::Prompt(_));
        self.device.advance(&mut pass, layers, &mut run.cache, draws || scores)?;
        let done = (pass.layer() - before) as f64 * layer_work;
        if pass.layer() < self.device.layers() {
            run.pass = Some(pass);
            return Ok(Some((done, Advanced::More)));
        }
        if let (true, Some(score)) = (scores, &mut sequence.prompt_score) {
            let prompt = &sequence.history.tokens()[..prompt];
            score.extend(
                self.device.model.as_ref(),
                pass.hidden(),
                range.clone(),
                prompt,
                &mut self.scratch,
            )?;
        }
        if matches!(next, Next::Prompt(_)) {
            Gauges::add(&self.gauges.prompt_tokens, range.len());
        }
        if !draws {
            return Ok(Some((done, Advanced::More)));
        }
        let end = match sequence.limits.max_tokens {
            0 => None,
            _ => Some(self.device.last_logits(pass.hidden())?),
        };
        Ok(Some((done, Advanced::Prompt(end))))
    }

    /// The end of a prompt has been issued: whoever waits for the same prompt gets a copy, and all draw from its last row.
    fn prompt_ended(&mut self, id: u64, end: Option<Rows>, fills: &mut Fills) {
        let Some(end) = end else {
            // Only the prompt was asked for, and it has been scored.
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.mark_token();
            }
            return self.end(id, FinishReason::Length);
        };
        for follower in self.followers_to_the_end(id) {
            fills.ends.push((follower, end.clone()));
        }
        fills.ends.push((id, end));
    }

    /// Waits for what was issued, and draws the first tokens of prompts that came to their end.
    pub(super) fn end_fills(&mut self, fills: Fills) -> Vec<Drawn> {
        for id in &fills.ids {
            let waited = match self.sequences.get(id).and_then(|sequence| sequence.run.as_ref()) {
                Some(run) => run.pass.as_ref().map_or_else(|| run.cache.eval(), Pass::wait),
                None => Ok(()),
            };
            if let Err(error) = waited {
                self.end(*id, FinishReason::Error(error.to_string()));
            }
        }
        if !fills.ids.is_empty() {
            self.pace.filled(fills.work, fills.started.elapsed().as_secs_f64());
        }
        fills.ends.into_iter().filter_map(|(id, logits)| self.draw_first(id, &logits)).collect()
    }

    fn draw_first(&mut self, id: u64, logits: &Rows) -> Option<Drawn> {
        let sequence = self.sequences.get_mut(&id).filter(|it| it.run.is_some())?;
        let mut row = [(0, &mut sequence.sampler, &sequence.history)];
        let mut draws = match Sampler::draw(logits, &mut row, &mut self.scratch) {
            Ok(draws) => draws,
            Err(error) => vec![Err(error)],
        };
        let outcome = draws.pop()?;
        self.take(id, outcome)
    }
}
