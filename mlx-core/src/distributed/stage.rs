//! A worker's layers, or shards of layers, with the states of all sequences. Independent of connections to rank 0.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;

use super::connection::Outcome;
use super::group::RankGroup;
use super::message::{Advance, RemoteStateInfo, Reply, Request, StateCommand};
use super::saved_layers::{packed, unpacked};
use crate::array;
use crate::cache::{Rollback, SavedLayers, SequenceState, Variant};
use crate::error::{Error, Result};
use crate::model::{Batch, Decoder, Model, Pass, Span};

/// The maximum number of rows of a pass.
const MAX_ROWS: usize = 1 << 20;

/// Layers of a model and states by their numbers on rank 0.
pub(super) struct Stage {
    /// The model without an adapter, then with each of them.
    decoders: Vec<Decoder>,
    layers: Range<usize>,
    /// True if the stage has a shard of each layer.
    is_shard: bool,
    group: Arc<RankGroup>,
    states: HashMap<u64, SequenceState>,
}

impl Stage {
    /// Creates a stage without states.
    pub(super) fn new(
        decoders: Vec<Decoder>,
        layers: Range<usize>,
        is_shard: bool,
        group: Arc<RankGroup>,
    ) -> Self {
        Self { decoders, layers, is_shard, group, states: HashMap::new() }
    }

    /// The number of layers of a state in each saved part.
    pub(super) fn saved_layers(&self) -> SavedLayers {
        let state = self.decoders.first().map(|decoder| decoder.new_state(Variant::default()));
        state.map(|state| state.saved_layers()).unwrap_or_default()
    }

    /// Returns the model with this adapter; 0 is the model without one.
    fn decoder(&self, adapter: usize) -> Result<&Decoder> {
        self.decoders.get(adapter).ok_or_else(|| unexpected("an unknown adapter"))
    }

    /// Answers a request about passes or states, and computes what it issued. Rank 0 gets the answer before the result is computed.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        payload: &[u8],
        reply: impl Fn(Reply, &[u8]) -> Outcome<()>,
    ) -> Outcome<Result<()>> {
        let answer = match request {
            Request::Advance(advance) => {
                let (rows, states) = match self.advance(advance) {
                    Ok(issued) => issued,
                    Err(error) => return Ok(Err(error)),
                };
                let peak = array::peak_memory().unwrap_or_default() as u64;
                reply(Reply::Advanced { states, peak }, &[])?;
                let computed = self.compute(rows.as_ref(), &advance.states);
                if computed.is_ok() {
                    reply(Reply::Computed, &[])?;
                }
                return Ok(computed);
            }
            Request::Release { id } => {
                self.states.remove(id);
                return Ok(Ok(()));
            }
            Request::Change { id, change } => self.change(*id, *change).map(Reply::Changed),
            Request::Export { id, part } => {
                let exported = match self.state(*id).and_then(|state| state.export_part(part)) {
                    Ok(layers) => layers,
                    Err(error) => return Ok(Err(error)),
                };
                let packed = exported.and_then(|layers| packed(layers.iter().map(Vec::as_slice)));
                let (layers, payload) = packed.unzip();
                return reply(Reply::Exported { layers }, &payload.unwrap_or_default()).map(Ok);
            }
            Request::Import { id, part, layers } => self.state(*id).map(|state| {
                let imported = unpacked(layers, payload)
                    .ok_or_else(|| unexpected("saved layers that do not fit their bytes"))
                    .and_then(|layers| state.import_part(part, &layers));
                Reply::Imported(imported.map(|()| info(state)).map_err(|error| error.to_string()))
            }),
            Request::Join { .. } | Request::Load(_) | Request::Echo | Request::Measure(_) => {
                Err(unexpected("an unexpected request"))
            }
        };
        answer.map_or_else(|error| Ok(Err(error)), |answer| reply(answer, &[]).map(Ok))
    }

    /// Issues layers of a pass. Returns the rows that other ranks wait for, and the reports of the states.
    fn advance(&mut self, advance: &Advance) -> Result<(Option<Array>, Vec<RemoteStateInfo>)> {
        self.check(advance)?;
        let mut states = Vec::with_capacity(advance.states.len());
        for (id, shift) in advance.states.iter().zip(&advance.position_shifts) {
            let mut state = self.states.remove(id).ok_or_else(|| unexpected("an unknown state"))?;
            state.set_position_shift(*shift);
            states.push(state);
        }
        let pass = self.run(advance, &mut states)?;
        let infos = states.iter().map(info).collect();
        self.states.extend(advance.states.iter().copied().zip(states));
        let rows = match self.group.is_last() {
            // The other machines wait for the sums of the last layer, too.
            _ if self.is_shard => Some(pass.hidden().clone()),
            true if !advance.needs_hidden => None,
            _ => Some(self.group.send_on(pass.hidden())?),
        };
        Ok((rows, infos))
    }

    fn run(&self, advance: &Advance, states: &mut [SequenceState]) -> Result<Pass> {
        let decoder = self.decoder(advance.adapter)?;
        let shape = [advance.rows as i32, decoder.spec().hidden_size as i32];
        let mut hidden = self.group.receive(&shape, decoder.dtype())?;
        if self.is_shard && !self.group.is_last() {
            hidden = self.group.send_on(&hidden)?;
        }
        let (spans, picture_rows) = (advance.spans.clone(), advance.picture_rows.clone());
        let batch = Batch::resumed(hidden, spans, &advance.axes, picture_rows, advance.per_span);
        let Range { start, end } = advance.layers;
        let mut pass = decoder.resume(batch, start - self.layers.start)?;
        let mut borrowed: Vec<&mut SequenceState> = states.iter_mut().collect();
        decoder.advance(&mut pass, end - start, &mut borrowed)?;
        Ok(pass)
    }

    /// Computes rows and states.
    fn compute(&self, rows: Option<&Array>, states: &[u64]) -> Result<()> {
        if let Some(rows) = rows {
            rows.eval()?;
        }
        states.iter().filter_map(|id| self.states.get(id)).try_for_each(SequenceState::eval)
    }

    /// Refuses a pass that this worker cannot run.
    fn check(&self, advance: &Advance) -> Result<()> {
        let Advance { layers, states, position_shifts, spans, axes, picture_rows, rows, .. } = advance;
        self.decoder(advance.adapter)?;
        let (own, rows) = (&self.layers, *rows);
        if layers.start < own.start || layers.end > own.end || layers.is_empty() {
            return Err(unexpected("layers of another machine"));
        }
        if rows > MAX_ROWS {
            return Err(unexpected("too many rows"));
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
                let state = self.decoder(0)?.new_state(variant);
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
                let (Some(decoder), Some(state)) = (self.decoders.first(), self.states.get_mut(&id)) else {
                    return Err(unexpected("an unknown state"));
                };
                decoder.shift(state, kept, dropped)?;
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
