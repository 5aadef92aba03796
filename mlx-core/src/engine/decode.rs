//! Decode steps: one row for every sequence whose cache holds all but its newest token.

use std::time::Instant;

use super::finish::{take, tell};
use super::request::FinishReason;
use super::runner::Engine;
use super::sequence::{Next, Sequence};
use crate::array::Rows;
use crate::cache::SequenceCache;
use crate::error::{Error, Result};
use crate::model::Row;
use crate::sampling::{Draw, Sampler, TokenHistory};

/// A step on the device: one or more passes of as many rows as may run together.
pub(super) struct Step {
    groups: Vec<Group>,
    started: Instant,
    /// An error that may be this step's, although another wait was told of it.
    doubt: Option<String>,
}

/// One pass: row `i` belongs to sequence `ids[i]`; ids rise.
pub(super) struct Group {
    ids: Vec<u64>,
    logits: Result<Rows>,
}

/// A token that was drawn and taken, and is yet to be told.
pub(super) struct Drawn {
    id: u64,
    draw: Draw,
    ended: Option<FinishReason>,
}

impl Engine {
    /// Waits for the step on the device, if there is one.
    pub(super) fn wait_for_step(&mut self) -> Vec<Group> {
        let Some(mut step) = self.step.take() else { return Vec::new() };
        for group in &mut step.groups {
            if let Ok(rows) = &group.logits
                && let Err(error) = rows.wait()
            {
                group.logits = Err(error);
            }
        }
        self.pace.stepped(step.started.elapsed().as_secs_f64());
        let Some(message) = step.doubt else { return step.groups };
        for id in step.groups.iter().flat_map(|group| &group.ids) {
            self.start_over(*id, &message);
        }
        Vec::new()
    }

    /// MLX tells an error of the device once, to whoever waits first. One that comes to light in work that nobody depends on may be
    /// that of the step on the device, which nobody will be told of any more: its rows are computed again.
    pub(super) fn doubt_step(&mut self, error: &Error) {
        if let (Error::Mlx(message), Some(step)) = (error, &mut self.step) {
            step.doubt = Some(message.clone());
        }
    }

    /// Draws a token for every row of the step that was waited for.
    pub(super) fn draw(&mut self, groups: Vec<Group>) -> Vec<Drawn> {
        let mut drawn = Vec::new();
        for Group { ids, logits } in groups {
            match logits.and_then(|rows| self.draw_rows(&ids, &rows)) {
                Ok(tokens) => drawn.extend(tokens),
                Err(error) => self.pass_failed(&ids, &error.to_string()),
            }
        }
        drawn
    }

    /// Draws for those of `ids` that still run, each from its own row, and takes the tokens.
    fn draw_rows(&mut self, ids: &[u64], logits: &Rows) -> Result<Vec<Drawn>> {
        let running = self.sequences.iter_mut().filter(|(_, sequence)| sequence.run.is_some());
        let (mut drawers, mut rows): (Vec<u64>, Vec<(usize, &mut Sampler, &TokenHistory)>) = running
            .filter_map(|(&id, Sequence { sampler, history, .. })| {
                let row = ids.binary_search(&id).ok()?;
                Some((id, (row, sampler, &*history)))
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
                sequence.suspect = false;
                let ended = take(sequence, draw.token);
                Some(Drawn { id, draw, ended })
            }
            Err(error) => {
                self.end(id, FinishReason::Error(error.to_string()));
                None
            }
        }
    }

    /// Tells what was drawn, and ends the sequences whose last token it was.
    pub(super) fn tell(&mut self, drawn: Vec<Drawn>) {
        for Drawn { id, draw, ended } in drawn {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            if let Some(reason) = tell(sequence, draw, ended) {
                self.end(id, reason);
            }
        }
    }

    /// Starts the next step for all that go on.
    pub(super) fn start_step(&mut self, drawn: &[Drawn]) {
        self.start_over_beyond();
        let over = |id: u64| drawn.iter().any(|it| it.id == id && it.ended.is_some());
        let steps = |(_, sequence): &(&u64, &Sequence)| sequence.next() == Next::Step;
        let ready: Vec<u64> = self.sequences.iter().filter(steps).map(|(&id, _)| id).collect();
        for &id in ready.iter().filter(|&&id| !over(id)) {
            // Whoever has to go back in line for this has nothing to step any more.
            self.has_room_to_grow(id);
        }
        let ready = self.sequences.iter().filter(steps).filter(|(id, _)| !over(**id));
        let (suspects, others): (Vec<_>, Vec<_>) = ready.partition(|(_, sequence)| sequence.suspect);
        let ids = |rows: &[(&u64, &Sequence)]| rows.iter().map(|(id, _)| **id).collect::<Vec<u64>>();
        let mut groups: Vec<Vec<u64>> = others.chunks(self.device.most_rows()).map(ids).collect();
        groups.extend(suspects.chunks(1).map(ids));
        if !groups.is_empty() {
            let started = Instant::now();
            let groups = groups.into_iter().map(|ids| self.start_group(ids)).collect();
            self.step = Some(Step { groups, started, doubt: None });
        }
    }

    /// What has grown beyond the border of LongRoPE is computed again from its first token, as transformers does.
    fn start_over_beyond(&mut self) {
        for sequence in self.sequences.values_mut().filter(|sequence| sequence.next() == Next::Step) {
            let beyond = self.device.model.spec().is_beyond(sequence.history.len());
            if let Some(run) = &mut sequence.run
                && run.cache.is_beyond() != beyond
            {
                run.cache = self.device.new_cache_for(sequence.history.len());
            }
        }
    }

    fn start_group(&mut self, ids: Vec<u64>) -> Group {
        let members = self.sequences.iter_mut().filter(|(id, _)| ids.binary_search(id).is_ok());
        let (mut rows, mut caches): (Vec<Row>, Vec<&mut SequenceCache>) = (Vec::new(), Vec::new());
        for (_, sequence) in members {
            let Some(run) = &mut sequence.run else { continue };
            if let Err(error) = self.device.slide_if_full(&mut run.cache, sequence.limits.slide) {
                return Group { ids, logits: Err(error) };
            }
            let token = sequence.history.tokens()[run.cache.seen()];
            rows.push(Row { cache: rows.len(), token, position: run.cache.offset() });
            caches.push(&mut run.cache);
        }
        let logits = self.device.decode(&rows, &mut caches);
        Group { ids, logits }
    }

    /// A pass over several sequences failed, and nobody knows whose fault it was: each starts over. Who was alone already ends.
    fn pass_failed(&mut self, ids: &[u64], message: &str) {
        match ids {
            [id] => self.end(*id, FinishReason::Error(message.to_owned())),
            ids => ids.iter().for_each(|&id| self.start_over(id, message)),
        }
    }

    /// Computes a sequence again from its tokens, and its next step alone. Who does so already ends.
    fn start_over(&mut self, id: u64, message: &str) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|it| it.run.is_some()) else { return };
        if sequence.suspect {
            return self.end(id, FinishReason::Error(message.to_owned()));
        }
        sequence.suspect = true;
        self.scheduler.put_back(id);
        self.stop(id);
    }
}
