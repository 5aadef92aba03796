//! Decode steps: one row for every sequence whose cache holds all but its newest token.

use std::time::Instant;

use super::finish::{take, tell};
use super::request::FinishReason;
use super::runner::Engine;
use super::sequence::{Next, Sequence};
use crate::array::Rows;
use crate::cache::SequenceState;
use crate::error::Result;
use crate::model::Row;
use crate::sampling::{Draw, DrawRequest, Sampler};

/// A step on the device: one or more passes of as many rows as may run together.
pub(super) struct Step {
    groups: Vec<Group>,
    started: Instant,
}

/// One pass: row `i` belongs to sequence `ids[i]`; ids rise.
struct Group {
    ids: Vec<u64>,
    logits: Result<Rows>,
}

/// The logits of a pass that was waited for, and whose they are.
pub(super) type Ready = (Vec<u64>, Rows);

/// A token that was drawn and taken, and is yet to be told.
pub(super) struct Drawn {
    id: u64,
    draw: Draw,
    ended: Option<FinishReason>,
}

impl Step {
    /// Waits for all passes; false if one failed. MLX tells an error of the device once, to whoever waits first: whoever would wait for
    /// something else while a step is there lets the step be waited for before.
    pub(super) fn settle(&mut self) -> bool {
        for group in &mut self.groups {
            if let Ok(rows) = &group.logits
                && let Err(error) = rows.wait()
            {
                group.logits = Err(error);
            }
        }
        self.groups.iter().all(|group| group.logits.is_ok())
    }
}

impl Engine {
    /// Waits for the step on the device and leaves it there; false if something of it failed.
    pub(super) fn settle_step(&mut self) -> bool {
        self.step.as_mut().is_none_or(Step::settle)
    }

    /// Takes the step from the device, if there is one: the passes that can be drawn from. Where one failed, no row of the step is
    /// believed, since the error of one may hide another's.
    pub(super) fn wait_for_step(&mut self) -> Vec<Ready> {
        let good = self.settle_step();
        let Some(step) = self.step.take() else { return Vec::new() };
        if good {
            self.pace.stepped(step.started.elapsed().as_secs_f64());
            let ready = step.groups.into_iter().filter_map(|group| Some((group.ids, group.logits.ok()?)));
            return ready.collect();
        }
        let ids: Vec<u64> = step.groups.iter().flat_map(|group| &group.ids).copied().collect();
        if let Some(error) = step.groups.into_iter().find_map(|group| group.logits.err()) {
            self.pass_failed(&ids, &error.to_string());
        }
        Vec::new()
    }

    /// Draws a token for every row of the step that was waited for.
    pub(super) fn draw(&mut self, ready: Vec<Ready>) -> Vec<Drawn> {
        let mut drawn = Vec::new();
        for (ids, logits) in ready {
            match self.draw_rows(&ids, &logits) {
                Ok(tokens) => drawn.extend(tokens),
                Err(error) => self.pass_failed(&ids, &error.to_string()),
            }
        }
        drawn
    }

    /// Draws for those of `ids` that still run, each from its own row, and takes the tokens.
    fn draw_rows(&mut self, ids: &[u64], logits: &Rows) -> Result<Vec<Drawn>> {
        let running = self.sequences.iter_mut().filter(|(_, sequence)| sequence.run.is_some());
        let (mut drawers, mut rows): (Vec<u64>, Vec<DrawRequest<'_>>) = running
            .filter_map(|(&id, Sequence { sampler, history, .. })| {
                let row = ids.binary_search(&id).ok()?;
                Some((id, DrawRequest { row, sampler, history }))
            })
            .unzip();
        let outcomes = Sampler::draw(logits, &mut rows, &mut self.scratch)?;
        let drawn = drawers.drain(..).zip(outcomes).filter_map(|(id, outcome)| self.take(id, outcome));
        Ok(drawn.collect())
    }

    /// Takes what was drawn for a sequence; a row that cannot be drawn from ends its sequence and no other.
    pub(super) fn take(&mut self, id: u64, outcome: Result<Draw>) -> Option<Drawn> {
        match outcome {
            Ok(draw) => {
                let sequence = self.sequences.get_mut(&id)?;
                sequence.quarantined = false;
                let ended = take(sequence, draw.token);
                Some(Drawn { id, draw, ended })
            }
            Err(error) => {
                self.end(id, FinishReason::Error(error.to_string()));
                None
            }
        }
    }

    /// Tells what was drawn, then ends the sequences whose last token it was.
    pub(super) fn tell(&mut self, drawn: Vec<Drawn>) {
        let mut over = Vec::new();
        for Drawn { id, draw, ended } in drawn {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            over.extend(tell(sequence, draw, ended).map(|reason| (id, reason)));
        }
        for (id, reason) in over {
            self.end(id, reason);
        }
    }

    /// Starts the next step for all that go on.
    pub(super) fn start_step(&mut self, drawn: &[Drawn]) {
        self.replace_outgrown();
        for id in self.ready(drawn) {
            if self.has_room_to_grow(id) {
                self.slide_if_full(id);
            }
        }
        // Whoever had to go back in line for this has nothing to step any more.
        let mut ready = self.ready(drawn);
        if let Some(&quarantined) = ready.iter().find(|&&id| self.is_quarantined(id)) {
            // Nobody runs beside it, so that what fails is its own.
            ready = vec![quarantined];
        }
        let groups: Vec<_> = ready.chunks(self.device.most_rows()).map(<[u64]>::to_vec).collect();
        if !groups.is_empty() {
            let started = Instant::now();
            let groups = groups.into_iter().map(|ids| self.start_group(ids)).collect();
            self.step = Some(Step { groups, started });
        }
    }

    /// Whose caches hold all but the newest token, without those whose last token is among `drawn`.
    fn ready(&self, drawn: &[Drawn]) -> Vec<u64> {
        let over = |id: u64| drawn.iter().any(|it| it.id == id && it.ended.is_some());
        let steps = |&(&id, sequence): &(&u64, &Sequence)| sequence.next() == Next::Step && !over(id);
        self.sequences.iter().filter(steps).map(|(&id, _)| id).collect()
    }

    /// A sequence that has grown into another variant is computed again from its first token, as in transformers.
    fn replace_outgrown(&mut self) {
        for sequence in self.sequences.values_mut().filter(|sequence| sequence.next() == Next::Step) {
            let length = sequence.history.len();
            if let Some(run) = &mut sequence.run
                && run.cache.variant() != self.device.variant(length)
            {
                run.cache = self.device.new_state(length);
            }
        }
    }

    fn start_group(&mut self, ids: Vec<u64>) -> Group {
        let members = self.sequences.iter_mut().filter(|(id, _)| ids.binary_search(id).is_ok());
        let (mut rows, mut caches): (Vec<Row>, Vec<&mut SequenceState>) = (Vec::new(), Vec::new());
        for (_, sequence) in members {
            let Some(run) = &mut sequence.run else { continue };
            let token = sequence.history.tokens()[run.cache.seen()];
            rows.push(Row { cache: rows.len(), token, position: run.cache.offset() });
            caches.push(&mut run.cache);
        }
        let logits = self.device.decode(&rows, &mut caches);
        Group { ids, logits }
    }

    /// What several sequences had on the device failed, and nobody knows whose fault it was: each starts over from its tokens and
    /// runs alone until its next token. Who was alone already ends.
    pub(super) fn pass_failed(&mut self, ids: &[u64], message: &str) {
        for &id in ids {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            if sequence.quarantined || ids.len() == 1 {
                self.end(id, FinishReason::Error(message.to_owned()));
            } else {
                sequence.quarantined = true;
                self.restart(id);
            }
        }
    }

    /// Whether a sequence was there when something failed, and has to run alone.
    pub(super) fn is_quarantined(&self, id: u64) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.quarantined)
    }

    /// Puts a sequence back in line, to be computed again from its tokens.
    pub(super) fn restart(&mut self, id: u64) {
        if self.sequences.get(&id).is_some_and(|sequence| sequence.run.is_some()) {
            self.scheduler.put_back(id);
            self.stop(id);
        }
    }
}
