//! Prefills: prompts, and tokens that a preempted sequence had generated, run through the model between decode steps. A pass may
//! stop after any layer, so that no prompt holds up the streams for longer than the pace allows.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use super::decode::Drawn;
use super::prefill_budget::work;
use super::request::{Event, FinishReason};
use super::runner::Engine;
use super::sequence::{Next, Sequence};
use super::stats::Gauges;
use crate::array::Rows;
use crate::error::Result;
use crate::model::Pass;
use crate::sampling::{DrawRequest, Sampler};

/// What was issued in one turn.
pub(super) struct Prefills {
    ids: Vec<u64>,
    /// Ends of prompts, from which first tokens are to be drawn.
    ends: Vec<(u64, Rows)>,
    work: f64,
    started: Instant,
    /// What one of them was told of, though it may be another's fault.
    fault: Option<String>,
}

/// Layers to issue for a sequence.
struct Piece {
    next: Next,
    /// The tokens of the pass, by their places in the history.
    range: Range<usize>,
    layers: usize,
    /// What a layer costs.
    work: f64,
    /// Whether it comes to the end of a prompt that a first token is to be drawn from.
    ends: bool,
}

impl Engine {
    /// Issues as much as may run before the next step; with `streams` that wait for it, that is what the pace allows, and
    /// without them one pass.
    pub(super) fn start_prefills(&mut self, streams: bool) -> Prefills {
        self.follow_leaders();
        let started = Instant::now();
        let mut fills = Prefills { ids: Vec::new(), ends: Vec::new(), work: 0.0, started, fault: None };
        let allowance = self.pace.allowance(self.to_prefill().into_iter().map(|id| self.rest(id)));
        while let Some(&id) = self.to_prefill().first() {
            if !self.may_run_beside(id, &fills.ids) {
                break;
            }
            let limit = streams.then_some(allowance - fills.work);
            let Some(piece) = self.piece(id, limit, fills.ids.is_empty()) else { break };
            fills.ids.push(id);
            let told = self.issue(id, &piece).and_then(|(work, pass)| {
                fills.work += work;
                pass.map_or(Ok(()), |pass| self.pass_issued(id, &piece, &pass, &mut fills))
            });
            keep_first(&mut fills.fault, told);
            if !streams || fills.fault.is_some() {
                break;
            }
        }
        fills
    }

    /// The sequence in the middle of a pass, then whoever has waited longest since its start or its last chunk: several prompts
    /// advance side by side, and new ones do not hold up old ones.
    fn to_prefill(&self) -> Vec<u64> {
        let fills = |sequence: &Sequence| matches!(sequence.next(), Next::Prompt(_) | Next::Replay(_));
        let place = |(&id, sequence): (&u64, &Sequence)| {
            let run = sequence.run.as_ref().filter(|run| run.leader.is_none() && fills(sequence))?;
            Some((run.pass.is_none(), run.place, id))
        };
        let mut places: Vec<_> = self.sequences.iter().filter_map(place).collect();
        places.sort_unstable();
        places.into_iter().map(|it| it.2).collect()
    }

    /// The work that is left of a sequence's prompt, or a little more.
    fn rest(&self, id: u64) -> f64 {
        let Some(sequence) = self.sequences.get(&id) else { return 0.0 };
        let (Next::Prompt(end) | Next::Replay(end)) = sequence.next() else { return 0.0 };
        let seen = sequence.run.as_ref().map_or(0, |run| run.cache.seen());
        self.device.layers() as f64 * work(end - seen, end)
    }

    /// What to issue for a sequence at a cost of at most `limit`; the `first` piece of a turn is one layer whatever it costs, so
    /// that streams cannot starve a prompt. None if nothing fits.
    fn piece(&self, id: u64, limit: Option<f64>, first: bool) -> Option<Piece> {
        let sequence = self.sequences.get(&id)?;
        let cache = &sequence.run.as_ref()?.cache;
        let next = sequence.next();
        let range = self.device.prefill_range(next, cache, sequence.limits.slide)?;
        let work = work(range.len(), range.end);
        let layers = match limit {
            None => self.device.layers(),
            Some(limit) => ((limit / work) as usize).max(usize::from(first)),
        };
        let ends = sequence.awaits_first_token() && next == Next::Prompt(range.end);
        (layers > 0).then_some(Piece { next, range, layers, work, ends })
    }

    /// Issues a piece; gives what it cost, and the pass if that was the last of it.
    fn issue(&mut self, id: u64, piece: &Piece) -> Result<(f64, Option<Pass>)> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok((0.0, None)) };
        let reads = sequence.reader.is_on();
        let Some(run) = &mut sequence.run else { return Ok((0.0, None)) };
        let mut pass = match (run.pass.take(), piece.next) {
            (Some(pass), _) => pass,
            (None, next) => {
                let tokens = &sequence.history.tokens()[piece.range.clone()];
                self.device.slide_if_full(&mut run.cache, sequence.limits.slide)?;
                match next {
                    Next::Replay(_) => self.device.begin_replay(tokens, run.cache.offset())?,
                    _ => self.device.begin_chunk(tokens, run.cache.offset())?,
                }
            }
        };
        let before = pass.layer();
        // Of a prompt's last chunk somebody reads the hidden rows; of the others only who scores or embeds.
        let wanted = piece.ends || reads && matches!(piece.next, Next::Prompt(_));
        self.device.advance(&mut pass, piece.layers, &mut run.cache, wanted)?;
        let cost = (pass.layer() - before) as f64 * piece.work;
        if pass.layer() < self.device.layers() {
            run.pass = Some(pass);
            return Ok((cost, None));
        }
        self.go_behind(id);
        Ok((cost, Some(pass)))
    }

    /// Whoever has had a chunk lets the others have theirs, unless it is as good as through.
    fn go_behind(&mut self, id: u64) {
        if !self.pace.is_short(self.rest(id))
            && let Some(run) = self.sequences.get_mut(&id).and_then(|sequence| sequence.run.as_mut())
        {
            self.places += 1;
            run.place = self.places;
        }
    }

    /// All layers of a pass have been issued: whoever reads the prompt's hidden rows gets them, and at the end of the prompt the
    /// first token's logits are on their way.
    fn pass_issued(&mut self, id: u64, piece: &Piece, pass: &Pass, fills: &mut Prefills) -> Result<()> {
        let (Next::Prompt(length), Some(sequence)) = (piece.next, self.sequences.get_mut(&id)) else {
            return Ok(());
        };
        Gauges::add(&self.gauges.prompt_tokens, piece.range.len());
        if sequence.reader.is_on() {
            // What is read here is waited for here, and what goes wrong from then on is its own.
            if !self.settle_prefills(fills) {
                return Ok(());
            }
            if let Err(error) = self.read(id, piece, length, pass) {
                self.end(id, FinishReason::Error(error.to_string()));
                return Ok(());
            }
        }
        if piece.ends { self.prompt_ended(id, pass, fills) } else { Ok(()) }
    }

    /// AttentionWeights or embeds the tokens of a piece of a prompt of `length` tokens.
    fn read(&mut self, id: u64, piece: &Piece, length: usize, pass: &Pass) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(()) };
        let Sequence { reader, history, outlet, .. } = &mut *sequence;
        let (model, prompt) = (self.device.model.as_ref(), &history.tokens()[..length]);
        if let Some(score) = &mut reader.score {
            score.extend(model, pass.hidden(), piece.range.clone(), prompt, &mut self.scratch)?;
        }
        if let Some(embedding) = &mut reader.embedding {
            embedding.extend(model, pass.hidden(), piece.range.clone())?;
        }
        if piece.ends
            && let Some(embedding) = reader.embedding.take()
        {
            // Nobody listens any more when the front end is gone; the next turn notices.
            outlet.sink.try_send(Event::Embedding(embedding.vector()?)).ok();
        }
        Ok(())
    }

    /// The end of a prompt has been issued: whoever waits for the same prompt gets a copy, and all draw from its last row.
    fn prompt_ended(&mut self, id: u64, pass: &Pass, fills: &mut Prefills) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(()) };
        if sequence.limits.max_tokens == 0 {
            // Only the prompt was asked for, and it has been read.
            sequence.mark_token();
            self.end(id, FinishReason::Length);
            return Ok(());
        }
        let end = self.device.last_logits(pass.hidden())?;
        if !self.followers_to_the_end(id).is_empty() {
            // Copies are waited for, too, and would be told of what went wrong here.
            self.settle_prefills(fills);
            keep_first(&mut fills.fault, end.wait());
            if fills.fault.is_some() {
                return Ok(());
            }
        }
        let followers = self.copy_to_followers(id);
        fills.ends.extend(followers.into_iter().chain([id]).map(|id| (id, end.clone())));
        Ok(())
    }

    /// Waits for what was issued, and draws the first tokens of prompts that came to their end.
    pub(super) fn finish_prefills(&mut self, mut fills: Prefills) -> Vec<Drawn> {
        self.settle_prefills(&mut fills);
        if !fills.ids.is_empty() {
            self.pace.filled(fills.work, fills.started.elapsed().as_secs_f64());
        }
        for (_, logits) in &fills.ends {
            keep_first(&mut fills.fault, logits.wait());
        }
        if let Some(message) = &fills.fault {
            let ids: BTreeSet<u64> = fills.ids.into_iter().collect();
            self.pass_failed(&Vec::from_iter(ids), message);
            fills.ends.into_iter().for_each(|(id, _)| self.restart(id));
            return Vec::new();
        }
        fills.ends.into_iter().filter_map(|(id, logits)| self.draw_first(id, &logits)).collect()
    }

    /// Waits for fills; false if one failed. What else would be waited for while they are on the device, and be told of their errors, lets
    /// them be waited for before.
    fn settle_prefills(&self, fills: &mut Prefills) -> bool {
        let runs = fills.ids.iter().filter_map(|id| self.sequences.get(id)?.run.as_ref());
        for run in runs {
            keep_first(&mut fills.fault, run.pass.as_ref().map_or_else(|| run.cache.eval(), Pass::wait));
        }
        fills.fault.is_none()
    }

    /// Whether a fill may be on the device together with `others`: what has failed in company runs alone.
    fn may_run_beside(&self, id: u64, others: &[u64]) -> bool {
        others.iter().all(|&other| other == id || !self.is_quarantined(id) && !self.is_quarantined(other))
    }

    fn draw_first(&mut self, id: u64, logits: &Rows) -> Option<Drawn> {
        let sequence = self.sequences.get_mut(&id).filter(|it| it.run.is_some())?;
        let mut row = [DrawRequest { row: 0, sampler: &mut sequence.sampler, history: &sequence.history }];
        let mut draws = match Sampler::draw(logits, &mut row, &mut self.scratch) {
            Ok(draws) => draws,
            Err(error) => vec![Err(error)],
        };
        let outcome = draws.pop()?;
        self.take(id, outcome)
    }
}

/// Keeps the first error that was told.
fn keep_first(fault: &mut Option<String>, outcome: Result<()>) {
    if let (None, Err(error)) = (&fault, outcome) {
        *fault = Some(error.to_string());
    }
}
