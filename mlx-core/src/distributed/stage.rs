//! A worker's layers, or shards of layers, with the states of all sequences. Independent of connections.

use std::collections::HashMap;
use std::ops::Range;

use super::message::{Advance, RemoteStateInfo, Reply, Request, StateCommand, dtype_label, float_bytes};
use crate::array;
use crate::cache::{Rollback, SequenceState};
use crate::error::{Error, Result};
use crate::model::{Batch, Decoder, Model, Pass, Span};

/// Layers of a model and states by their numbers on rank 0.
pub(super) struct Stage {
    decoder: Decoder,
    layers: Range<usize>,
    /// True if the stage has a shard of each layer.
    is_shard: bool,
    states: HashMap<u64, SequenceState>,
}

impl Stage {
    /// Creates a stage without states.
    pub(super) fn new(decoder: Decoder, layers: Range<usize>, is_shard: bool) -> Self {
        Self { decoder, layers, is_shard, states: HashMap::new() }
    }

    /// Answers a request about passes or states. A failure becomes [`Reply::Failed`].
    pub(super) fn answer(&mut self, request: &Request, payload: &[u8]) -> (Reply, Vec<u8>) {
        let outcome = match request {
            Request::Advance(advance) => self.advance(advance, payload),
            Request::Change { id, change, released } => {
                self.release(released);
                self.change(*id, *change).map(|info| (Reply::Changed(info), Vec::new()))
            }
            Request::Ping { released } => {
                self.release(released);
                Ok((Reply::Pong, Vec::new()))
            }
            Request::Join { .. } | Request::Load(_) | Request::Sum | Request::Echo => {
                Err(unexpected("an unexpected request"))
            }
        };
        outcome.unwrap_or_else(|error| (Reply::Failed { message: error.to_string() }, Vec::new()))
    }

    fn release(&mut self, ids: &[u64]) {
        for id in ids {
            self.states.remove(id);
        }
    }

    fn advance(&mut self, advance: &Advance, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
        self.release(&advance.released);
        self.check(advance, payload)?;
        let hidden = array::of_file(payload, advance.dtype, &advance.shape)?;
        let (spans, picture_rows) = (advance.spans.clone(), advance.picture_rows.clone());
        let batch = Batch::resumed(hidden, spans, &advance.axes, picture_rows, advance.per_span);
        let mut states = Vec::with_capacity(advance.states.len());
        for (id, shift) in advance.states.iter().zip(&advance.position_shifts) {
            let mut state = self.states.remove(id).ok_or_else(|| unexpected("an unknown state"))?;
            state.set_position_shift(*shift);
            states.push(state);
        }
        let outcome = self.run(advance, batch, &mut states);
        // Even after an error, rank 0 still has to release them.
        let infos = states.iter().map(info).collect();
        self.states.extend(advance.states.iter().copied().zip(states));
        let pass = outcome?;
        let rows = if advance.needs_hidden { array::to_bytes(pass.hidden())?.1 } else { Vec::new() };
        Ok((Reply::Advanced { layer: self.layers.start + pass.layer(), states: infos }, rows))
    }

    fn run(&self, advance: &Advance, batch: Batch, states: &mut [SequenceState]) -> Result<Pass> {
        let Range { start, end } = advance.layers;
        let mut pass = self.decoder.resume(batch, start - self.layers.start)?;
        let mut borrowed: Vec<&mut SequenceState> = states.iter_mut().collect();
        self.decoder.advance(&mut pass, end - start, &mut borrowed)?;
        // The other machines wait for the sums of the last layer, too.
        if advance.needs_hidden || self.is_shard {
            pass.wait()?;
        }
        states.iter().try_for_each(SequenceState::eval)?;
        Ok(pass)
    }

    /// Refuses a pass that this worker cannot run.
    fn check(&self, advance: &Advance, payload: &[u8]) -> Result<()> {
        let Advance { layers, states, position_shifts, spans, axes, picture_rows, shape, .. } = advance;
        let own = &self.layers;
        if layers.start < own.start || layers.end > own.end || layers.is_empty() {
            return Err(unexpected("layers of another machine"));
        }
        let spec = self.decoder.spec();
        let [rows, width] = shape[..] else { return Err(unexpected("hidden states of another shape")) };
        let known = float_bytes(advance.dtype).filter(|_| dtype_label(advance.dtype) == spec.dtype);
        let bytes = known.and_then(|size| rows.checked_mul(width)?.checked_mul(size));
        if width != spec.hidden_size || bytes != Some(payload.len()) {
            return Err(unexpected("hidden states of another shape or type"));
        }
        let used = spans.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.len));
        let fits = |span: &Span| span.len > 0 && span.state < states.len();
        if spans.is_empty() || !spans.iter().all(fits) || used.is_none_or(|used| used > rows) {
            return Err(unexpected("a pass whose rows do not fit its states"));
        }
        if position_shifts.len() != states.len() || !(axes.is_empty() || axes.len() == rows) {
            return Err(unexpected("positions that do not fit the rows"));
        }
        if !picture_rows.is_sorted_by(|one, next| one < next) || picture_rows.last() >= Some(&rows) {
            return Err(unexpected("picture rows outside of the pass"));
        }
        let mut sorted = states.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != states.len() || !sorted.iter().all(|id| self.states.contains_key(id)) {
            return Err(unexpected("an unknown state"));
        }
        Ok(())
    }

    fn change(&mut self, id: u64, change: StateCommand) -> Result<RemoteStateInfo> {
        match change {
            StateCommand::New { variant, kv_bits } => {
                let state = self.decoder.new_state(variant);
                self.states.insert(
                    id,
                    match kv_bits {
                        Some(bits) => state.quantized(bits),
                        None => state,
                    },
                );
            }
            StateCommand::Fork { from, length } => {
                let fork = self.state(from)?.fork(length)?;
                let fork =
                    fork.ok_or_else(|| unexpected("a length that a state cannot be rolled back to"))?;
                fork.eval()?;
                self.states.insert(id, fork);
            }
            StateCommand::Rollback(length) => {
                if self.state(id)?.rollback(length) != Rollback::Done {
                    return Err(unexpected("a length that a state cannot be rolled back to"));
                }
            }
            StateCommand::Checkpoint { marked } => self.state(id)?.checkpoint(marked)?,
            StateCommand::EvictCheckpoint => drop(self.state(id)?.evict_checkpoint()),
            StateCommand::DropCheckpoints => drop(self.state(id)?.drop_checkpoints()),
            StateCommand::RecordSnapshots(on) => self.state(id)?.record_snapshots(on),
            StateCommand::Shift { kept, dropped } => {
                let state = self.states.get_mut(&id).ok_or_else(|| unexpected("an unknown state"))?;
                self.decoder.shift(state, kept, dropped)?;
            }
        }
        self.state(id).map(|state| info(state))
    }

    fn state(&mut self, id: u64) -> Result<&mut SequenceState> {
        self.states.get_mut(&id).ok_or_else(|| unexpected("an unknown state"))
    }
}

/// Returns the report of a state.
fn info(state: &SequenceState) -> RemoteStateInfo {
    RemoteStateInfo {
        len: state.offset(),
        shortest_cut: state.min_truncate_length(),
        bytes: state.bytes(),
        checkpoint_bytes: state.checkpoint_bytes(),
        is_pooled: state.is_pooled(),
    }
}

fn unexpected(what: &str) -> Error {
    Error::Distributed(format!("rank 0 sent {what}"))
}
