//! Prefix sharing between requests in flight: a prompt that begins like one that is being computed waits for it and copies its state.

use crate::cache::SequenceState;
use crate::engine::run::device::Device;
use crate::engine::schedule::plan::Next;
use crate::engine::sequence::{Sequence, Sequences, Source, Wait};
use crate::error::Result;

/// Returns the running sequence that shares the longest reusable prefix with the prompt of `id`.
pub(super) fn source_for(id: u64, sequences: &Sequences, device: &Device) -> Option<Source> {
    let own = sequences.get(id);
    if own.reader.is_on() {
        // Scores and embeddings need the hidden state of every position.
        return None;
    }
    // A waiting sequence is no source, so that no circle of waiters can form.
    let leads =
        |it: &Sequence| it.run.as_ref().is_some_and(|run| run.wait == Wait::Nothing) && it.ended.is_none();
    let others = sequences.iter().filter(|&(other, sequence)| other != id && leads(sequence));
    let source = |(id, other)| {
        let parting = shared(own, other, device);
        Source { id, length: reachable(own, other, parting, device), parting }
    };
    let sources = others.map(source);
    sources.filter(|source| source.length > 0).max_by_key(|source| source.length)
}

/// Lets a sequence wait for its source, which takes a checkpoint where they part, in case it does not stop there. Where the source can
/// only be copied far before that place, the follower takes one there.
pub(super) fn follow(id: u64, source: Source, sequences: &mut Sequences, device: &Device) -> Source {
    let Source { length, parting, .. } = source;
    sequences.get_mut(id).mark_behind(parting, length, device);
    let plan = &mut sequences.get_mut(source.id).checkpoints;
    if plan.is_on() {
        plan.mark(length);
    }
    source
}

/// Lets waiting sequences copy what their sources have computed, or continue without sources that are gone. Nothing may be pending on
/// the device.
pub(in crate::engine) fn share(sequences: &mut Sequences, device: &Device) {
    for (id, source) in waiting_for_sources(sequences) {
        let whole_prompt = sequences.get(id).history.prompt_length() == source.length;
        let progress = sequences
            .find(source.id)
            .and_then(|it| Some((it.run.as_ref()?.state.seen(), it.awaits_first_token())));
        match progress {
            // An equal prompt is shared at the moment its end is computed.
            Some((_, true)) if whole_prompt => {}
            Some((seen, _)) if !whole_prompt && seen < source.length => {}
            Some(_) if !whole_prompt => {
                copy_from(id, source, sequences, device);
            }
            _ => wait_anew(id, sequences, device),
        }
    }
}

/// Copies the state of a prompt whose end was computed to all that wait for the whole of it; returns the ids that got it.
pub(in crate::engine) fn share_whole_prompt(id: u64, sequences: &mut Sequences, device: &Device) -> Vec<u64> {
    let length = sequences.get(id).history.prompt_length();
    let waiters = waiting_for_sources(sequences).into_iter();
    let equal: Vec<u64> = waiters
        .filter(|(waiter, source)| {
            (source.id, source.length) == (id, length)
                && sequences.get(*waiter).history.prompt_length() == length
        })
        .map(|(waiter, _)| waiter)
        .collect();
    let source = Source { id, length, parting: length };
    equal.into_iter().filter(|waiter| copy_from(*waiter, source, sequences, device)).collect()
}

fn waiting_for_sources(sequences: &Sequences) -> Vec<(u64, Source)> {
    let waits = |(id, it): (u64, &Sequence)| match it.run.as_ref()?.wait {
        Wait::Source(source) => Some((id, source)),
        Wait::Nothing | Wait::Disk(_) => None,
    };
    sequences.iter().filter_map(waits).collect()
}

fn wait_anew(id: u64, sequences: &mut Sequences, device: &Device) {
    let source = source_for(id, sequences, device).map(|source| follow(id, source, sequences, device));
    sequences.get_mut(id).running().wait = source.map_or(Wait::Nothing, Wait::Source);
}

/// Gives a waiting sequence a copy of its source's state; false if it continues without.
fn copy_from(id: u64, source: Source, sequences: &mut Sequences, device: &Device) -> bool {
    let length = sequences.get(id).history.len();
    let copy = copy_of(source, sequences).unwrap_or_else(|error| {
        tracing::warn!(%error, "the state of another request could not be copied");
        None
    });
    let sequence = sequences.get_mut(id);
    // Sharing saves work; it is never needed.
    let Some(state) = copy.filter(|state| device.fits(state, length)) else {
        sequence.running().wait = Wait::Nothing;
        return false;
    };
    let shared = state.offset() == source.length;
    sequence.resume_with(state);
    shared
}

/// `None` if its state cannot go back to the prefix. Evaluated at once: a pending copy would keep the source from writing in place.
fn copy_of(source: Source, sequences: &Sequences) -> Result<Option<SequenceState>> {
    let Some(run) = sequences.find(source.id).and_then(|it| it.run.as_ref()) else { return Ok(None) };
    let copy = run.state.fork(source.length)?;
    copy.as_ref().map_or(Ok(()), SequenceState::eval)?;
    Ok(copy)
}

/// Positions that `own` may copy from `other`: up to a chunk boundary, so that its own chunks have the shapes that they have alone; or all of
/// an equal prompt whose end is still to come.
fn shared(own: &Sequence, other: &Sequence, device: &Device) -> usize {
    let (Some(mine), Some(theirs)) = (own.prompt_keys(), other.prompt_keys()) else { return 0 };
    // Exact results come only from exact states, and a client reuses only its own text unless prefixes are shared. A state that is shifted
    // meanwhile cannot be cut.
    let tier = other.tier(other.exact());
    let is_readable = own.tier(tier.exact) == tier && (tier.exact || !own.exact());
    if !is_readable || mine.len().max(theirs.len()) > device.context() {
        return 0;
    }
    let prompt_to_come = other.awaits_first_token() && matches!(other.next(), Next::Prompt(_));
    if mine == theirs && own.awaits_first_token() && prompt_to_come && other.limits.max_tokens > 0 {
        return mine.len();
    }
    let common = mine.iter().zip(theirs.iter()).take_while(|(mine, theirs)| mine == theirs).count();
    let (common, undivided) = (common.min(mine.len() - 1), own.pictures.undivided());
    // There are no checkpoints in between.
    if device.needs_checkpoints() {
        device.reusable_blocks(common, true, undivided)
    } else {
        device.chunk_boundary(common, undivided)
    }
}

/// How many of the first `parting` positions can be copied from `other`: all of them while they are still to be computed, or as far as
/// its state can go back.
fn reachable(own: &Sequence, other: &Sequence, parting: usize, device: &Device) -> usize {
    let Some(run) = other.run.as_ref().filter(|run| device.fits(&run.state, own.history.len())) else {
        return 0;
    };
    if parting >= run.state.offset() { parting } else { run.state.nearest(parting) }
}
