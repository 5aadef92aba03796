//! Counts the operations that a pass issues. On a GPU each is a kernel launch, so their number should not grow with the sequences of a decode
//! step.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::array::write_graph;
use crate::cache::{SequenceState, Variant};
use crate::error::{Error, Result};
use crate::model::{Batch, Model, Pass};

/// The positions that memory is promised for, so that states of different lengths share a pool.
const PROMISED: usize = 4096;

/// Returns the operations per layer of a decode step of sequences with these lengths. An earlier step has moved them into pools.
///
/// # Errors
/// The model cannot run, or there is no temporary file to write the graph to.
pub fn of_step(model: &dyn Model, lengths: &[usize]) -> Result<f64> {
    let mut known: BTreeMap<usize, SequenceState> = BTreeMap::new();
    let mut states: Vec<SequenceState> = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let known = match known.entry(length) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(prefilled(model, length)?),
        };
        let copy = known.fork(length)?;
        let mut state = copy.ok_or_else(|| Error::Internal("a state cannot be copied".into()))?;
        state.promise(PROMISED);
        states.push(state);
    }
    let mut count = 0;
    for step in 0..2 {
        let rows: Vec<(u32, usize)> = lengths.iter().map(|length| (7, length + step)).collect();
        count = of_layers(model, Batch::decode(&rows), &mut states)?;
    }
    Ok(count as f64 / model.spec().num_layers as f64)
}

/// Returns the operations per layer of a chunk of a prompt.
///
/// # Errors
/// As for [`of_step`].
pub fn of_chunk(model: &dyn Model, length: usize) -> Result<f64> {
    let mut states = [model.new_state(Variant::default())];
    let count = of_layers(model, Batch::prompt(&prompt(length), 0), &mut states)?;
    Ok(count as f64 / model.spec().num_layers as f64)
}

fn prefilled(model: &dyn Model, length: usize) -> Result<SequenceState> {
    let mut state = model.new_state(Variant::default());
    model.forward(Batch::prompt(&prompt(length), 0), &mut [&mut state])?;
    state.eval()?;
    Ok(state)
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|place| 5 + place as u32 % 40).collect()
}

/// Returns the operations of all layers of a pass, and computes it.
fn of_layers(model: &dyn Model, batch: Batch, states: &mut [SequenceState]) -> Result<usize> {
    let mut states: Vec<&mut SequenceState> = states.iter_mut().collect();
    let mut pass = model.begin(batch)?;
    let embedded = operations(&pass)?;
    model.advance(&mut pass, model.spec().num_layers, &mut states)?;
    let all = operations(&pass)?;
    pass.wait()?;
    states.iter().try_for_each(|state| state.eval())?;
    Ok(all.saturating_sub(embedded))
}

/// Returns the pending operations of the rows of a pass.
fn operations(pass: &Pass) -> Result<usize> {
    let io = |error: std::io::Error| Error::Internal(format!("a graph cannot be written or read: {error}"));
    let file = tempfile::NamedTempFile::new().map_err(io)?;
    write_graph(pass.hidden(), file.path())?;
    let text = std::fs::read_to_string(file.path()).map_err(io)?;
    Ok(text.lines().filter(|line| line.contains("shape=rectangle")).count())
}
