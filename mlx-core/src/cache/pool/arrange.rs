//! Moves the sequences of a step into pools. A sequence keeps its slot, joins a pool, or moves with others into a new pool.

use std::sync::{Arc, Mutex, PoisonError};

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::columns::{in_columns, padded};
use super::groups::{Group, Need, group, is_near, slots};
use super::{Pool, Pooled, SharedPool, Slot};
use crate::array::slice_axis;
use crate::cache::measure::measure;
use crate::error::Result;
use crate::mlx_sys::slice_update;

/// A sequence of a step.
pub(in crate::cache) struct Member<'a> {
    pub(in crate::cache) state: &'a mut dyn Pooled,
    /// The indices of its rows in the step.
    pub(in crate::cache) rows: Vec<usize>,
    pub(in crate::cache) need: Need,
}

/// The sequences of a step that are in one pool.
#[derive(Clone)]
struct UsedPool {
    pool: SharedPool,
    members: Vec<usize>,
    capacity: usize,
}

/// Gives every member a slot with capacity for its rows, and returns the members [by pool](by_pool). `like` has the shapes of the
/// rows to write, `[T, H, 1, D]` each.
pub(in crate::cache) fn arrange(members: &mut [Member], like: &[Array]) -> Result<Vec<Vec<usize>>> {
    let present = present(members);
    match plan_joins(members, &present) {
        Some(joining) => {
            for (member, place) in joining {
                join(members, &present[place], member)?;
            }
        }
        None => {
            for group in group(&members.iter().map(|member| member.need).collect::<Vec<_>>()) {
                if !present.iter().any(|it| it.members == group.members && fits(members, it, &[])) {
                    build(members, &group, like)?;
                }
            }
        }
    }
    Ok(by_pool(members))
}

/// Returns the members of each pool, in the order of their slots.
pub(in crate::cache) fn by_pool(members: &[Member]) -> Vec<Vec<usize>> {
    let mut lists: Vec<Vec<usize>> = present(members).into_iter().map(|it| it.members).collect();
    for list in &mut lists {
        list.sort_by_key(|&member| members[member].state.slot().map(|slot| slot.index));
    }
    lists
}

/// Returns the pools that hold members.
fn present(members: &[Member]) -> Vec<UsedPool> {
    let mut present: Vec<UsedPool> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let Some(slot) = member.state.slot() else { continue };
        match present.iter_mut().find(|it| Arc::ptr_eq(&it.pool, &slot.pool)) {
            Some(it) => it.members.push(index),
            None => present.push(UsedPool {
                pool: Arc::clone(&slot.pool),
                members: vec![index],
                capacity: slot.capacity,
            }),
        }
    }
    present
}

/// Returns true if a pool has capacity for its members and for `more`, and their promised positions cover all its slots.
fn fits(members: &[Member], it: &UsedPool, more: &[usize]) -> bool {
    let pool = it.pool.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = pool.taken.iter().filter(|taken| **taken).count();
    // Sequences outside the step keep their slots.
    let idle = taken - it.members.len();
    let needs = it.members.iter().chain(more).map(|&member| members[member].need);
    let is_long_enough = needs.clone().all(|need| need.capacity <= it.capacity);
    is_long_enough && slots(needs, it.capacity) + idle >= pool.taken.len().max(taken + more.len())
}

/// Chooses a pool, as an index into `present`, for each member without a slot. Returns `None` if the members must be grouped again.
fn plan_joins(members: &[Member], present: &[UsedPool]) -> Option<Vec<(usize, usize)>> {
    if present.is_empty() || !present.iter().all(|it| fits(members, it, &[])) {
        return None;
    }
    let mut joining: Vec<(usize, usize)> = Vec::new();
    for (index, member) in members.iter().enumerate().filter(|(_, member)| member.state.slot().is_none()) {
        let needed = member.need.capacity;
        let takes = |place: usize| {
            let with: Vec<usize> = joining.iter().filter(|it| it.1 == place).map(|it| it.0).collect();
            is_near(needed, present[place].capacity, present.len())
                && fits(members, &present[place], &[with, vec![index]].concat())
        };
        let place =
            (0..present.len()).filter(|&place| takes(place)).min_by_key(|&it| present[it].capacity)?;
        joining.push((index, place));
    }
    Some(joining)
}

/// Moves a member without a slot into this pool. Copies only the positions of this member, unless the pool needs more slots.
fn join(members: &mut [Member], it: &UsedPool, index: usize) -> Result<()> {
    let mut pool = it.pool.lock().unwrap_or_else(PoisonError::into_inner);
    // After the others, so that slots and rows have the same order.
    let behind = pool.taken.iter().rposition(|taken| *taken).map_or(0, |last| last + 1);
    let free = (behind < pool.taken.len()).then_some(behind);
    let place = free.or_else(|| pool.taken.iter().position(|taken| !taken));
    let place = place.map_or_else(|| add_slots(&mut pool, members, it, index), Ok)?;
    let member = &mut members[index];
    let (range, parts) = (member.state.kept(), member.state.parts()?);
    for (all, part) in pool.parts.iter_mut().zip(&parts) {
        let columns = in_columns(part, range.clone(), it.capacity)?;
        let [heads, capacity, size] = [1, 2, 3].map(|axis| columns.dim(axis));
        let row = place as i32;
        *all = slice_update(all, &columns, [row, 0, 0, 0], [row + 1, heads, capacity, size])?;
    }
    pool.taken[place] = true;
    let column_bytes = column_bytes(&pool.parts);
    drop(pool);
    member.state.put(Slot { pool: Arc::clone(&it.pool), index: place, capacity: it.capacity, column_bytes });
    Ok(())
}

/// Adds free slots for one more member. Returns the index of the first.
fn add_slots(pool: &mut Pool, members: &[Member], it: &UsedPool, index: usize) -> Result<usize> {
    let first = pool.taken.len();
    let needs = it.members.iter().chain([&index]).map(|&member| members[member].need);
    let idle = first - it.members.len();
    let count = (slots(needs, it.capacity) + idle).max(first + 1);
    for part in &mut pool.parts {
        *part = padded(part, 0, count)?;
    }
    pool.taken.resize(count, false);
    Ok(first)
}

/// Moves members into a new pool.
fn build(members: &mut [Member], group: &Group, like: &[Array]) -> Result<()> {
    let parts = match move_pool(members, group) {
        Some(parts) => parts?,
        None => gather_states(members, group, like)?,
    };
    let parts: Vec<Array> = parts.iter().map(|part| padded(part, 0, group.slots)).collect::<Result<_>>()?;
    let column_bytes = column_bytes(&parts);
    let taken = (0..group.slots).map(|slot| slot < group.members.len()).collect();
    let pool = Arc::new(Mutex::new(Pool { parts, taken }));
    for (index, &member) in group.members.iter().enumerate() {
        let slot = Slot { pool: Arc::clone(&pool), index, capacity: group.capacity, column_bytes };
        members[member].state.put(slot);
    }
    Ok(())
}

/// Returns the arrays of a new pool if all members are in one pool, in the order of their slots, and no position changes its column.
fn move_pool(members: &[Member], group: &Group) -> Option<Result<Vec<Array>>> {
    let slots: Option<Vec<&Slot>> =
        group.members.iter().map(|&member| members[member].state.slot()).collect();
    let slots = slots?;
    let first = slots.first()?;
    let in_order = slots.windows(2).all(|pair| pair[0].index < pair[1].index);
    let stays = |member: &usize| members[*member].state.kept().end <= first.capacity;
    let same_columns = group.capacity == first.capacity
        || (group.capacity > first.capacity && group.members.iter().all(stays));
    let one_pool = slots.iter().all(|slot| Arc::ptr_eq(&slot.pool, &first.pool));
    if !(in_order && same_columns && one_pool) {
        return None;
    }
    let places: Vec<i32> = slots.iter().map(|slot| slot.index as i32).collect();
    let count = places.len() as i32;
    let move_part = |part: &Array| {
        let kept = if places.iter().copied().eq(0..count) {
            slice_axis(part, 0, 0, count)?
        } else {
            part.take_axis(Array::from_slice(&places, &[count]), 0)?
        };
        padded(&kept, 2, group.capacity)
    };
    Some(first.arrays().iter().map(move_part).collect())
}

/// Returns the arrays of a new pool for members that may be anywhere. Copies each separately.
fn gather_states(members: &[Member], group: &Group, like: &[Array]) -> Result<Vec<Array>> {
    let mut columns: Vec<Vec<Array>> = vec![Vec::new(); like.len()];
    for &member in &group.members {
        let (range, parts) = (members[member].state.kept(), members[member].state.parts()?);
        for (place, like) in like.iter().enumerate() {
            let empty = || {
                let shape = [1, like.dim(1), group.capacity as i32, like.dim(3)];
                Ok(zeros_dtype(&shape, like.dtype())?)
            };
            let own = |part| in_columns(part, range.clone(), group.capacity);
            columns[place].push(parts.get(place).map_or_else(empty, own)?);
        }
    }
    columns.iter().map(|part| Ok(concatenate(part, 0)?)).collect()
}

fn column_bytes(parts: &[Array]) -> usize {
    let columns = parts.first().map_or(1, |part| (part.dim(0) * part.dim(2)).max(1)) as usize;
    measure(parts) / columns
}
