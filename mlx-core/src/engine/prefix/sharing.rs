//! Prefix sharing between requests in flight: a prompt that begins like one that is being computed waits for it and copies its state.

use crate::cache::SequenceState;
use crate::engine::run::device::Device;
use crate::engine::schedule::plan::Next;
use crate::engine::sequence::{Sequence, Sequences, Source, Wait};
use crate::error::Result;

impl Sequences {
    /// The running sequence that shares the longest reusable prefix with the prompt of `id`.
    pub(in crate::engine) fn source_for(&self, id: u64, device: &Device) -> Option<Source> {
        let own = self.get(id);
        if own.reader.is_on() {
            // Scores and embeddings need the hidden state of every position.
            return None;
        }
        // A waiting sequence is no source, so that no circle of waiters can form.
        let leads = |it: &Sequence| {
            it.run.as_ref().is_some_and(|run| run.wait == Wait::Nothing) && it.ended.is_none()
        };
        let others = self.iter().filter(|&(other, sequence)| other != id && leads(sequence));
        let source = |(id, other)| {
            let parting = shared(own, other, device);
            Source { id, length: reachable(own, other, parting, device), parting }
        };
        let sources = others.map(source);
        sources.filter(|source| source.length > 0).max_by_key(|source| source.length)
    }

    /// Lets a sequence wait for its source, which takes a checkpoint where they part, in case it does not stop there. Where the source can
    /// only be copied far before that place, the follower takes one there.
    pub(in crate::engine) fn follow(&mut self, id: u64, source: Source, device: &Device) -> Source {
        let Source { length, parting, .. } = source;
        self.get_mut(id).mark_behind(parting, length, device);
        let plan = &mut self.get_mut(source.id).checkpoints;
        if plan.is_on() {
            plan.mark(length);
        }
        source
    }

    /// Lets waiting sequences copy what their sources have computed, or go on without sources that are gone. Nothing may be pending on the
    /// device.
    pub(in crate::engine) fn share(&mut self, device: &Device) {
        for (id, source) in self.waiting_for_sources() {
            let whole_prompt = self.get(id).history.prompt_length() == source.length;
            let ahead = self
                .find(source.id)
                .and_then(|it| Some((it.run.as_ref()?.state.seen(), it.awaits_first_token())));
            match ahead {
                // An equal prompt is shared at the moment its end is computed.
                Some((_, true)) if whole_prompt => {}
                Some((seen, _)) if !whole_prompt && seen < source.length => {}
                Some(_) if !whole_prompt => {
                    self.copy_from(id, source, device);
                }
                _ => self.wait_anew(id, device),
            }
        }
    }

    /// Copies the state of a prompt whose end was computed to all that wait for the whole of it; returns the ids that got it.
    pub(in crate::engine) fn share_whole_prompt(&mut self, id: u64, device: &Device) -> Vec<u64> {
        let length = self.get(id).history.prompt_length();
        let waiters = self.waiting_for_sources().into_iter();
        let equal: Vec<u64> = waiters
            .filter(|(waiter, source)| {
                (source.id, source.length) == (id, length)
                    && self.get(*waiter).history.prompt_length() == length
            })
            .map(|(waiter, _)| waiter)
            .collect();
        equal
            .into_iter()
            .filter(|waiter| self.copy_from(*waiter, Source { id, length, parting: length }, device))
            .collect()
    }

    fn waiting_for_sources(&self) -> Vec<(u64, Source)> {
        let waits = |(id, it): (u64, &Sequence)| match it.run.as_ref()?.wait {
            Wait::Source(source) => Some((id, source)),
            Wait::Nothing | Wait::Disk(_) => None,
        };
        self.iter().filter_map(waits).collect()
    }

    fn wait_anew(&mut self, id: u64, device: &Device) {
        let source = self.source_for(id, device).map(|source| self.follow(id, source, device));
        self.get_mut(id).running().wait = source.map_or(Wait::Nothing, Wait::Source);
    }

    /// Gives a waiting sequence a copy of its source's state; false if it goes on without.
    fn copy_from(&mut self, id: u64, source: Source, device: &Device) -> bool {
        let length = self.get(id).history.len();
        let copy = self.copy_of(source).unwrap_or_else(|error| {
            tracing::warn!(%error, "the state of another request could not be copied");
            None
        });
        let sequence = self.get_mut(id);
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
    fn copy_of(&self, source: Source) -> Result<Option<SequenceState>> {
        let Some(run) = self.find(source.id).and_then(|it| it.run.as_ref()) else { return Ok(None) };
        let copy = run.state.fork(source.length)?;
        copy.as_ref().map_or(Ok(()), SequenceState::eval)?;
        Ok(copy)
    }
}

/// Positions that `own` may copy from `other`: up to a chunk border, so that its own chunks have the shapes that they have alone; or all of
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
        device.border(common, undivided)
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
