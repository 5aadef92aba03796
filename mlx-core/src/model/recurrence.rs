//! Runs the rows of a pass through a recurrent layer. A decode step runs one row of every sequence per call. Longer spans and exact steps
//! run span by span.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::batch::Batch;
use crate::array::{slice_axis, take_rows};
use crate::cache::{LayerState, RecurrentArrays, RecurrentState};
use crate::error::Result;

/// A layer with a state of constant size.
pub(super) trait Recurrence {
    /// Returns the state of one sequence before its first row, for [`step`](Self::step) with these inputs.
    fn empty(&self, inputs: &[Array]) -> Result<RecurrentArrays>;

    /// Returns the output of the rows `inputs`, `[n, ..]` each, and the state after them. If `before` has one sequence, all rows belong to
    /// it. Otherwise it has `n` sequences, and row `i` belongs to sequence `i`.
    fn step(&self, inputs: &[Array], before: &RecurrentArrays) -> Result<(Array, RecurrentArrays)>;
}

/// Returns the output of a layer for the rows of a pass. Padding becomes 0.
pub(super) fn run(
    layer: &impl Recurrence,
    inputs: &[Array],
    batch: &Batch,
    states: &mut [&mut LayerState],
) -> Result<Array> {
    let mut mixed = if batch.is_decode() && !batch.is_per_span() {
        run_batched(layer, inputs, batch, states)?
    } else {
        span_by_span(layer, inputs, batch, states)?
    };
    let padding = batch.width() as i32 - mixed.dim(0);
    if padding > 0 {
        let shape = [&[padding], &mixed.shape()[1..]].concat();
        mixed = concatenate(&[&mixed, &zeros_dtype(&shape, mixed.dtype())?], 0)?;
    }
    Ok(mixed)
}

fn span_by_span(
    layer: &impl Recurrence,
    inputs: &[Array],
    batch: &Batch,
    states: &mut [&mut LayerState],
) -> Result<Array> {
    let (mut mixed, mut start) = (Vec::with_capacity(batch.spans().len()), 0);
    for span in batch.spans() {
        let end = start + span.len as i32;
        let rows: Vec<Array> =
            inputs.iter().map(|input| slice_axis(input, 0, start, end)).collect::<Result<_>>()?;
        let state = states[span.state].as_recurrent()?;
        let before = state.own_arrays()?.map_or_else(|| layer.empty(&rows), Ok)?;
        let (row, after) = layer.step(&rows, &before)?;
        state.replace(after, span.len);
        mixed.push(row);
        start = end;
    }
    joined(&mixed)
}

fn run_batched(
    layer: &impl Recurrence,
    inputs: &[Array],
    batch: &Batch,
    states: &mut [&mut LayerState],
) -> Result<Array> {
    let waves = waves(batch.spans().iter().map(|span| span.state));
    let mut mixed = Vec::with_capacity(waves.len());
    for wave in &waves {
        let rows: Vec<usize> = wave.iter().map(|&(_, row)| row).collect();
        let rows: Vec<Array> = inputs.iter().map(|input| take_rows(input, &rows)).collect::<Result<_>>()?;
        let mut of_wave: Vec<&mut RecurrentState> = Vec::with_capacity(wave.len());
        for (index, state) in states.iter_mut().enumerate() {
            if wave.binary_search_by_key(&index, |&(state, _)| state).is_ok() {
                of_wave.push(state.as_recurrent()?);
            }
        }
        let before: Vec<&RecurrentState> = of_wave.iter().map(|state| &**state).collect();
        let before = RecurrentState::gathered(&before, || layer.empty(&rows))?;
        let (row, after) = layer.step(&rows, &before)?;
        RecurrentState::replace_all(&mut of_wave, after);
        mixed.push(row);
    }
    let order: Vec<usize> = waves.into_iter().flatten().map(|(_, row)| row).collect();
    let mut places: Vec<usize> = (0..order.len()).collect();
    places.sort_unstable_by_key(|&place| order[place]);
    take_rows(&joined(&mixed)?, &places)
}

/// Groups rows into waves: the first row of every state, then the second rows, and so on. Input `i` is the state of row `i`. A wave lists
/// pairs of a state and a row, by ascending state.
fn waves(states: impl Iterator<Item = usize>) -> Vec<Vec<(usize, usize)>> {
    let mut waves: Vec<Vec<(usize, usize)>> = Vec::new();
    for (row, state) in states.enumerate() {
        let is_free = |wave: &Vec<(usize, usize)>| wave.iter().all(|&(other, _)| other != state);
        match waves.iter_mut().find(|wave| is_free(wave)) {
            Some(wave) => wave.push((state, row)),
            None => waves.push(vec![(state, row)]),
        }
    }
    for wave in &mut waves {
        wave.sort_unstable();
    }
    waves
}

fn joined(parts: &[Array]) -> Result<Array> {
    match parts {
        [only] => Ok(only.clone()),
        parts => Ok(concatenate(parts, 0)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_has_one_row_of_each_state() {
        let waves = waves([0, 0, 2, 1, 1, 1].into_iter());
        assert_eq!(waves, [vec![(0, 0), (1, 3), (2, 2)], vec![(0, 1), (1, 4)], vec![(1, 5)]]);
    }
}
