//! Counts the operations of a pass. On a GPU each is a kernel launch, so their number should not grow with the number of sequences in a
//! decode step.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::array::write_graph;
use crate::cache::{SequenceState, Variant};
use crate::error::{Error, Result};
use crate::model::{Batch, Model, Pass};

/// The number of positions for which memory is promised, so that states of different lengths share a pool.
const PROMISED: usize = 4096;

/// Returns the operations per layer of a decode step of sequences with these lengths. An earlier step has moved them into pools.
///
/// # Errors
/// Fails if the model cannot run, or if no temporary file for the graph can be created.
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

/// Returns the operations per layer of a prompt chunk.
///
/// # Errors
/// Fails like [`of_step`].
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

/// Returns the operations of all layers of a pass, and computes the pass.
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

/// Returns the number of pending operations of the rows of a pass.
fn operations(pass: &Pass) -> Result<usize> {
    let io = |error: std::io::Error| Error::Internal(format!("cannot write or read a graph: {error}"));
    let file = tempfile::NamedTempFile::new().map_err(io)?;
    write_graph(pass.hidden(), file.path())?;
    let text = std::fs::read_to_string(file.path()).map_err(io)?;
    Ok(text.lines().filter(|line| line.contains("shape=rectangle")).count())
}
