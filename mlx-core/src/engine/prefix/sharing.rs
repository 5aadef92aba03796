//! Prefix sharing between requests in flight: a prompt waits for another one with a common prefix and copies its state.

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
    // A waiting sequence cannot be a source, so no cycle of waiting sequences can form.
    let leads =
        |it: &Sequence| it.run.as_ref().is_some_and(|run| run.wait == Wait::Nothing) && it.ended.is_none();
    let others = sequences.iter().filter(|&(other, sequence)| other != id && leads(sequence));
    let source = |(id, other)| {
        let parting = shared(own, other, device);
        Source { id, length: copyable_length(own, other, parting, device), common_length: parting }
    };
    let sources = others.map(source);
    sources.filter(|source| source.length > 0).max_by_key(|source| source.length)
}

/// Makes a sequence wait for its source. The source takes a checkpoint at the length to copy, in case its chunk does not end there. If the
/// source can only be copied far before the end of the common prefix, the follower takes a checkpoint there.
pub(super) fn follow(id: u64, source: Source, sequences: &mut Sequences, device: &Device) -> Source {
    let Source { length, common_length: parting, .. } = source;
    sequences.get_mut(id).mark_after(parting, length, device);
    let plan = &mut sequences.get_mut(source.id).checkpoints;
    if plan.is_on() {
        plan.mark(length);
    }
    source
}

/// Lets waiting sequences copy the states of their sources, or continue if their sources have ended. Nothing may be pending on the device.
pub(in crate::engine) fn share(sequences: &mut Sequences, device: &Device) {
    for (id, source) in waiting_for_sources(sequences) {
        let whole_prompt = sequences.get(id).history.prompt_length() == source.length;
        let progress = sequences
            .find(source.id)
            .and_then(|it| Some((it.run.as_ref()?.state.seen(), it.awaits_first_token())));
        match progress {
            // An equal prompt is shared when its end is computed.
            Some((_, true)) if whole_prompt => {}
            Some((seen, _)) if !whole_prompt && seen < source.length => {}
            Some(_) if !whole_prompt => {
                copy_from(id, source, sequences, device);
            }
            _ => retry_wait(id, sequences, device),
        }
    }
}

/// Copies the state of a computed prompt to all sequences that wait for the whole prompt. Returns the ids of the sequences that received it.
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
    let source = Source { id, length, common_length: length };
    equal.into_iter().filter(|waiter| copy_from(*waiter, source, sequences, device)).collect()
}

fn waiting_for_sources(sequences: &Sequences) -> Vec<(u64, Source)> {
    let waits = |(id, it): (u64, &Sequence)| match it.run.as_ref()?.wait {
        Wait::Source(source) => Some((id, source)),
        Wait::Nothing | Wait::Disk(_) => None,
    };
    sequences.iter().filter_map(waits).collect()
}

fn retry_wait(id: u64, sequences: &mut Sequences, device: &Device) {
    let source = source_for(id, sequences, device).map(|source| follow(id, source, sequences, device));
    sequences.get_mut(id).running().wait = source.map_or(Wait::Nothing, Wait::Source);
}

/// Gives a waiting sequence a copy of its source's state. Returns false if the sequence continues without it.
fn copy_from(id: u64, source: Source, sequences: &mut Sequences, device: &Device) -> bool {
    let length = sequences.get(id).history.len();
    let copy = copy_of(source, sequences).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot copy the state of another request");
        None
    });
    let sequence = sequences.get_mut(id);
    // A failed copy costs only time.
    let Some(state) = copy.filter(|state| device.fits(state, length)) else {
        sequence.running().wait = Wait::Nothing;
        return false;
    };
    let shared = state.offset() == source.length;
    sequence.resume_with(state);
    shared
}

/// Returns a copy of the source's prefix, or `None` if its state cannot be truncated to it. The copy is evaluated at once, because a
/// pending copy would prevent the source from writing in place.
fn copy_of(source: Source, sequences: &Sequences) -> Result<Option<SequenceState>> {
    let Some(run) = sequences.find(source.id).and_then(|it| it.run.as_ref()) else { return Ok(None) };
    let copy = run.state.fork(source.length)?;
    copy.as_ref().map_or(Ok(()), SequenceState::eval)?;
    Ok(copy)
}

/// Returns the number of positions that `own` may copy from `other`. It ends at a chunk boundary, so that `own` computes the same chunks as
/// it would without sharing. An equal prompt is shared as a whole if its end is not yet computed.
fn shared(own: &Sequence, other: &Sequence, device: &Device) -> usize {
    let (Some(mine), Some(theirs)) = (own.prompt_keys(), other.prompt_keys()) else { return 0 };
    // Exact results require exact states, and a client reuses only its own text unless prefixes are shared. A state that has shifted cannot
    // be truncated.
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
    let (common, undivided) = (common.min(mine.len() - 1), own.media.undivided());
    // There are no checkpoints between chunk boundaries.
    if device.needs_checkpoints() {
        device.reusable_blocks(common, true, undivided)
    } else {
        device.chunk_boundary(common, undivided)
    }
}

/// Returns how many of the first `parting` positions can be copied from `other`: all of them if they are not computed yet, otherwise as
/// many as its state can be truncated to.
fn copyable_length(own: &Sequence, other: &Sequence, parting: usize, device: &Device) -> usize {
    let Some(run) = other.run.as_ref().filter(|run| device.fits(&run.state, own.history.len())) else {
        return 0;
    };
    if parting >= run.state.offset() { parting } else { run.state.nearest(parting) }
}
