//! Appends the rows of a decode step to the pools of their sequences, and returns the keys and values that they attend to.

use std::cell::RefCell;

use mlx_rs::Array;
use mlx_rs::ops::broadcast_to;

use super::layer::LayerState;
use super::pool::{Member, Need, Slot, arrange, by_pool};
use super::seen::Seen;
use crate::array::{slice_axis, take_rows};
use crate::error::{Error, Result};
use crate::mlx_sys::scatter;

/// The maximum number of rows per sequence. The ring of a sliding window has 64 positions more than the window.
const MAX_ROWS: usize = 16;

/// The rows of a decode step.
pub(crate) struct StepRows<'a> {
    /// The state that each row extends. The rows of a state are in the order of their positions.
    pub(crate) states: &'a [usize],
    /// The number of positions for which memory was promised, per state.
    pub(crate) promised: &'a [usize],
    /// Index arrays shared by the layers of the pass.
    pub(crate) columns: &'a Columns,
}

/// The index arrays of a step. Layers of the same shape share them.
#[derive(Default)]
pub(crate) struct Columns(RefCell<Vec<(Vec<i32>, Array)>>);

impl Columns {
    /// Returns an array with the column index of each slot, for rows of this shape, `[slots, H, 1, D]`.
    fn of(&self, columns: &[i32], shape: &[i32]) -> Result<Array> {
        let mut known = self.0.borrow_mut();
        let same = |(known, array): &&(Vec<i32>, Array)| known == columns && array.shape() == shape;
        if let Some((_, array)) = known.iter().find(same) {
            return Ok(array.clone());
        }
        let array = broadcast_to(Array::from_slice(columns, &[columns.len() as i32, 1, 1, 1]), shape)?;
        known.push((columns.to_vec(), array.clone()));
        Ok(array)
    }
}

/// The rows of a step whose sequences share a pool. Attention runs over places: each slot up to the last used one has `most` of them.
pub(crate) struct Bucket {
    /// The row at each place. Places without a row repeat one.
    pub(crate) row_of_place: Vec<usize>,
    /// Pairs of a row and its place.
    pub(crate) row_positions: Vec<(usize, usize)>,
    /// The number of places per slot.
    pub(crate) rows_per_slot: usize,
    /// The last position that each place attends to; 0 for places without a row.
    pub(crate) last_positions: Vec<i32>,
    /// Keys and values, `[slots, H, columns, D]` each. Some columns are unused, so that shapes stay the same for many steps.
    pub(crate) seen: Seen,
}

/// Appends keys and values, `[T, H, 1, D]` each, or latents to the states of their rows. Returns `None`, and changes nothing, if a pool
/// cannot hold states of this kind.
pub(crate) fn append_rows(
    states: &mut [&mut LayerState],
    rows: &StepRows,
    added: &[Array],
) -> Result<Option<Vec<Bucket>>> {
    let Some(mut members) = members(states, rows, true) else { return Ok(None) };
    let Some(first) = members.first() else { return Ok(None) };
    let added = first.state.packed(added)?;
    let lists = arrange(&mut members, &added)?;
    for list in &lists {
        write(&members, list, &added, rows.columns)?;
    }
    for member in &mut members {
        member.state.grow(member.rows.len());
    }
    lists.iter().map(|list| bucket(&members, list)).collect::<Result<_>>().map(Some)
}

/// Returns the result of [`append_rows`] for rows that another layer has appended.
pub(crate) fn seen_rows(states: &mut [&mut LayerState], rows: &StepRows) -> Result<Option<Vec<Bucket>>> {
    let Some(members) = members(states, rows, false) else { return Ok(None) };
    if members.iter().any(|member| member.state.slot().is_none()) {
        return Ok(None);
    }
    let lists = by_pool(&members);
    lists.iter().map(|list| bucket(&members, list)).collect::<Result<_>>().map(Some)
}

/// Returns the states with rows, before or after the rows are appended.
fn members<'a>(
    states: &'a mut [&mut LayerState],
    rows: &StepRows,
    is_before: bool,
) -> Option<Vec<Member<'a>>> {
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); states.len()];
    for (row, &state) in rows.states.iter().enumerate() {
        rows_of[state].push(row);
    }
    let mut members = Vec::with_capacity(states.len());
    for (index, (state, rows_of)) in states.iter_mut().zip(rows_of).enumerate() {
        if rows_of.is_empty() {
            continue;
        }
        let state = state.as_pooled().filter(|_| rows_of.len() <= MAX_ROWS)?;
        let length = state.kept().end + if is_before { rows_of.len() } else { 0 };
        let capacity = state.columns(length);
        let promised = state.columns(rows.promised.get(index).copied().unwrap_or(0)).max(capacity);
        members.push(Member { state, rows: rows_of, need: Need { capacity, promised } });
    }
    Some(members)
}

/// Writes the rows of these members of one pool.
fn write(members: &[Member], list: &[usize], added: &[Array], known: &Columns) -> Result<()> {
    let (mut rows, mut slots, mut columns): (Vec<usize>, Vec<i32>, Vec<i32>) = Default::default();
    for member in list.iter().map(|&member| &members[member]) {
        let Some(slot) = member.state.slot() else { continue };
        for (position, &row) in (member.state.kept().end..).zip(&member.rows) {
            rows.push(row);
            slots.push(slot.index as i32);
            columns.push((position % slot.capacity()) as i32);
        }
    }
    let Some(slot) = slot_of(members, list) else { return Ok(()) };
    let vector = |values: &[i32]| Array::from_slice(values, &[values.len() as i32]);
    let mut pool = slot.lock();
    let one_a_slot = slots.iter().copied().eq(0..pool.taken.len() as i32);
    // Each assignment drops the old array, so that MLX writes in place.
    for (part, added) in pool.parts.iter_mut().zip(added) {
        let own = take_rows(added, &rows)?;
        *part = if one_a_slot {
            part.put_along_axis(known.of(&columns, own.shape())?, own, 2)?
        } else {
            let update = own.reshape(&[own.dim(0), 1, own.dim(1), 1, own.dim(3)])?;
            scatter(part, &[&vector(&slots), &vector(&columns)], &update, &[0, 2])?
        };
    }
    Ok(())
}

fn slot_of<'a>(members: &'a [Member], list: &[usize]) -> Option<&'a Slot> {
    members[*list.first()?].state.slot()
}

/// Returns the places of these members of one pool, in the order of their slots, after their rows were appended.
fn bucket(members: &[Member], list: &[usize]) -> Result<Bucket> {
    let pooled = || list.iter().filter_map(|&member| Some((&members[member], members[member].state.slot()?)));
    let (Some((first, slot)), Some((_, last_slot))) = (pooled().next(), pooled().next_back()) else {
        return Err(Error::Internal("a step has a pool without sequences".into()));
    };
    let most = pooled().map(|(member, _)| member.rows.len()).max().unwrap_or(1);
    let (used, places) = (last_slot.index + 1, (last_slot.index + 1) * most);
    let parts = slot.arrays();
    let parts = parts.iter().map(|part| slice_axis(part, 0, 0, used as i32));
    let mut bucket = Bucket {
        row_of_place: vec![first.rows[0]; places],
        row_positions: Vec::new(),
        rows_per_slot: most,
        last_positions: vec![0; places],
        seen: first.state.seen(parts.collect::<Result<_>>()?)?,
    };
    for (Member { state, rows, .. }, slot) in pooled() {
        for (offset, &row) in rows.iter().enumerate() {
            let place = slot.index * most + offset;
            bucket.row_of_place[place] = row;
            bucket.row_positions.push((row, place));
            bucket.last_positions[place] = (state.kept().end - rows.len() + offset) as i32;
        }
    }
    Ok(bucket)
}

#[cfg(test)]
mod tests;
