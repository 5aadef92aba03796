//! Buffers of several sequences side by side, so that a decode step appends to all of them and attends over all of them at once.
//! Invariant: in a step whose sequences are those of the step before, no keys and values are copied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::capacity::capacity;
use super::full::FullCache;
use super::layer::LayerState;
use super::measure::measure;
use super::slot::{Pool, Slot};
use crate::array::slice_axis;
use crate::error::Result;

/// Rows of a step whose sequences are in one pool.
pub(crate) struct Bucket {
    /// The indices of the rows.
    pub(crate) rows: Vec<usize>,
    /// How many positions each of them sees.
    pub(crate) lengths: Vec<usize>,
    /// `[rows, H, seen, D]`, as far as the longest sees.
    pub(crate) keys: Array,
    /// The same.
    pub(crate) values: Array,
}

/// Appends row `i` of `added`, `[R, 2 H, 1, D]`, to state `of_rows[i]`, each a state that keeps every position and has one row; `None`
/// if some are of another kind.
pub(crate) fn append_rows(
    states: &mut [&mut LayerState],
    of_rows: &[usize],
    added: &Array,
) -> Result<Option<Vec<Bucket>>> {
    let mut buckets: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (row, &state) in of_rows.iter().enumerate() {
        let LayerState::Full(cache) = &*states[state] else { return Ok(None) };
        buckets.entry(capacity(cache.len() + 1)).or_default().push(row);
    }
    let whole = buckets.len() == 1;
    let append = |(capacity, rows): (usize, Vec<usize>)| {
        let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let of_bucket = Array::from_slice(&indices, &[indices.len() as i32]);
        let added = if whole { added.clone() } else { added.take_axis(of_bucket, 0)? };
        let mut members: Vec<Option<&mut FullCache>> = rows.iter().map(|_| None).collect();
        for (state, layer) in states.iter_mut().enumerate() {
            if let (Some(place), LayerState::Full(cache)) =
                (rows.iter().position(|&row| of_rows[row] == state), &mut **layer)
            {
                members[place] = Some(cache);
            }
        }
        append(capacity, rows, members.into_iter().flatten().collect(), &added)
    };
    buckets.into_iter().map(append).collect::<Result<_>>().map(Some)
}

fn append(
    capacity: usize,
    rows: Vec<usize>,
    mut members: Vec<&mut FullCache>,
    added: &Array,
) -> Result<Bucket> {
    let pool = match pool_of(&members, capacity) {
        Some(pool) => pool,
        None => new_pool(&mut members, capacity, added)?,
    };
    let starts: Vec<i32> = members.iter().map(|member| member.len() as i32).collect();
    for member in &mut members {
        member.grow();
    }
    let lengths: Vec<usize> = members.iter().map(|member| member.len()).collect();
    let seen = lengths.iter().copied().max().unwrap_or_default() as i32;
    let (count, heads) = (rows.len() as i32, added.dim(1) / 2);
    let mut array = pool.lock().unwrap_or_else(PoisonError::into_inner);
    // The pool keeps no handle of what was there before, so it is written in place.
    *array = array.put_along_axis(Array::from_slice(&starts, &[count, 1, 1, 1]), added, 2)?;
    let recent = slice_axis(&array, 2, 0, seen)?;
    let (keys, values) = (slice_axis(&recent, 1, 0, heads)?, slice_axis(&recent, 1, heads, 2 * heads)?);
    Ok(Bucket { rows, lengths, keys, values })
}

/// The pool whose slots are these members, in this order and no others.
fn pool_of(members: &[&mut FullCache], capacity: usize) -> Option<Pool> {
    let pool = &members.first()?.slot()?.pool;
    let array = pool.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = array.dim(0) as usize == members.len() && array.dim(2) as usize == capacity;
    drop(array);
    let is_next = |(index, member): (usize, &&mut FullCache)| {
        member.slot().is_some_and(|slot| slot.index == index && Arc::ptr_eq(&slot.pool, pool))
    };
    (fits && members.iter().enumerate().all(is_next)).then(|| Arc::clone(pool))
}

/// Moves these members into a pool of their own.
fn new_pool(members: &mut [&mut FullCache], capacity: usize, added: &Array) -> Result<Pool> {
    let like = slice_axis(added, 0, 0, 1)?;
    let parts: Vec<Array> =
        members.iter().map(|member| member.with_capacity(capacity, &like)).collect::<Result<_>>()?;
    let array = concatenate(&parts, 0)?;
    let bytes = measure([&array]) / members.len();
    let pool = Arc::new(Mutex::new(array));
    for (index, member) in members.iter_mut().enumerate() {
        member.put(Slot { pool: Arc::clone(&pool), index, bytes });
    }
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;
    use mlx_rs::ops::zeros_dtype;

    use super::*;
    use crate::array::{active_memory, peak_memory, reset_peak_memory};

    const SEQUENCES: usize = 4;

    fn rows(sequences: usize, count: i32) -> Array {
        zeros_dtype(&[sequences as i32, 8, count, 64], Dtype::Float32).expect("it has a shape")
    }

    #[test]
    fn a_step_of_the_same_sequences_writes_in_place() {
        let _turn = crate::device_lock::device();
        let mut layers: Vec<LayerState> = (0..SEQUENCES).map(|_| LayerState::new(None)).collect();
        for layer in &mut layers {
            layer.append(&rows(1, 1000)).expect("it is appended");
        }
        let of_rows: Vec<usize> = (0..SEQUENCES).collect();
        let added = rows(SEQUENCES, 1);
        added.eval().expect("it is computed");
        let mut whole = 0;
        for step in 0..4 {
            let before = active_memory().expect("a figure");
            reset_peak_memory().expect("a device");
            let mut states: Vec<&mut LayerState> = layers.iter_mut().collect();
            let buckets = append_rows(&mut states, &of_rows, &added).expect("it is appended");
            let [bucket] = &buckets.expect("all keep every position")[..] else {
                panic!("one room, one bucket")
            };
            assert_eq!(bucket.lengths, [1001 + step; SEQUENCES]);
            for state in &states {
                for array in state.arrays() {
                    array.eval().expect("it is computed");
                }
            }
            let taken = peak_memory().expect("a figure").saturating_sub(before);
            whole = states.iter().map(|state| state.bytes()).sum();
            // The first step moves them beside each other.
            assert!(step == 0 || taken < whole / 100, "step {step}: {taken} bytes of {whole}");
        }
        assert_eq!(whole, SEQUENCES * capacity(1004) * 8 * 64 * 4);
    }
}
