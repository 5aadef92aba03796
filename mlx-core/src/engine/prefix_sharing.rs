//! Equal beginnings of prompts in flight are computed once: a sequence that another one is ahead of waits for it and takes over
//! its cache.

use super::runner::Engine;
use super::sequence::{Next, Sequence};
use crate::cache::SequenceState;
use crate::error::Result;

impl Engine {
    /// The running sequence whose prompt shares the longest beginning with that of `id`, and how much can be taken over.
    pub(super) fn leader_for(&self, id: u64) -> Option<(u64, usize)> {
        let own = self.sequences.get(&id)?;
        // AttentionWeights and embeddings need every position's hidden state.
        if own.reader.is_on() {
            return None;
        }
        // Only who waits for nobody can be waited for, so that nobody waits in a circle.
        let leads = |sequence: &Sequence| sequence.run.as_ref().is_some_and(|run| run.leader.is_none());
        let others = self.sequences.iter().filter(|&(&other, sequence)| other != id && leads(sequence));
        let shared = others.map(|(&other, sequence)| (other, self.shared(own, sequence)));
        shared.filter(|it| it.1 > 0).max_by_key(|it| it.1)
    }

    /// Positions that `own` may take over from `other`: whole chunks, so that what it computes itself has the shapes that it would
    /// have had alone; or all of a prompt that is the same to its end, as long as that end is yet to come.
    fn shared(&self, own: &Sequence, other: &Sequence) -> usize {
        let (mine, theirs) = (own.prompt(), other.prompt());
        if mine.len().max(theirs.len()) > self.device.model.spec().context_length {
            // Caches that slide on the way cannot be cut.
            return 0;
        }
        let both_to_come = own.awaits_first_token()
            && other.awaits_first_token()
            && matches!(other.next(), Next::Prompt(_))
            && other.limits.max_tokens > 0;
        if mine == theirs && both_to_come {
            return mine.len();
        }
        let common = mine.iter().zip(theirs).take_while(|(mine, theirs)| mine == theirs).count();
        let border = self.device.chunks.border(common.min(mine.len() - 1));
        let variant = self.device.variant(own.history.len());
        let fits = |cache: &SequenceState| cache.reaches(border) && cache.variant() == variant;
        if other.run.as_ref().is_some_and(|run| fits(&run.cache)) { border } else { 0 }
    }

    /// Lets those that wait for a leader take over what it has computed, or go on alone if it is gone.
    pub(super) fn follow_leaders(&mut self) {
        let waits = |(&id, sequence): (&u64, &Sequence)| Some((id, sequence.run.as_ref()?.leader?));
        let followers: Vec<_> = self.sequences.iter().filter_map(waits).collect();
        for (id, (leader, shared)) in followers {
            let ahead = self.sequences.get(&leader).and_then(|sequence| {
                let run = sequence.run.as_ref()?;
                Some((run.cache.seen(), sequence.awaits_first_token()))
            });
            let to_the_end = self.sequences.get(&id).is_some_and(|it| it.history.prompt_length() == shared);
            match ahead {
                // Its end is shared at the moment it comes.
                Some((_, true)) if to_the_end => {}
                Some((offset, _)) if offset >= shared && !to_the_end => self.take_over(id, leader, shared),
                Some(_) if !to_the_end => {}
                _ => {
                    let other = self.leader_for(id);
                    self.set_leader(id, other);
                }
            }
        }
    }

    /// Those that wait for the whole prompt of `leader`.
    pub(super) fn followers_to_the_end(&self, leader: u64) -> Vec<u64> {
        let Some(shared) = self.sequences.get(&leader).map(|it| it.history.prompt_length()) else {
            return Vec::new();
        };
        let follows = |sequence: &Sequence| {
            sequence.run.as_ref().is_some_and(|run| run.leader == Some((leader, shared)))
                && sequence.history.prompt_length() == shared
        };
        self.sequences.iter().filter(|(_, it)| follows(it)).map(|(&id, _)| id).collect()
    }

    /// Gives those that wait for the whole prompt of `leader` a copy of its cache, each; says who took it.
    pub(super) fn copy_to_followers(&mut self, leader: u64) -> Vec<u64> {
        let mut followers = self.followers_to_the_end(leader);
        let shared = self.sequences.get(&leader).map_or(0, |it| it.history.prompt_length());
        for &id in &followers {
            self.take_over(id, leader, shared);
        }
        followers.retain(|&id| self.has_taken(id, shared));
        followers
    }

    fn has_taken(&self, id: u64, shared: usize) -> bool {
        let run = self.sequences.get(&id).and_then(|sequence| sequence.run.as_ref());
        run.is_some_and(|run| run.cache.offset() == shared)
    }

    fn take_over(&mut self, id: u64, leader: u64, shared: usize) {
        let length = self.sequences.get(&id).map_or(0, |sequence| sequence.history.len());
        let variant = self.device.variant(length);
        match self.copy_of(leader, shared) {
            Ok(Some(cache)) if cache.variant() == variant => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    sequence.take_over(cache);
                }
            }
            // Sharing is a saving, never a need.
            _ => self.set_leader(id, None),
        }
    }

    /// `None` if the leader is gone, or so far ahead that a sliding window has left the shared beginning behind.
    /// Computed at once: a copy that is still to be made would keep the leader from writing in place.
    fn copy_of(&self, leader: u64, length: usize) -> Result<Option<SequenceState>> {
        let Some(run) = self.sequences.get(&leader).and_then(|sequence| sequence.run.as_ref()) else {
            return Ok(None);
        };
        let cache = run.cache.fork(length)?;
        cache.as_ref().map_or(Ok(()), SequenceState::eval)?;
        Ok(cache)
    }

    /// Lets everybody who waits for `leader` go on without it, perhaps behind somebody else.
    pub(super) fn release_followers(&mut self, leader: u64) {
        let follows = |sequence: &Sequence| {
            sequence.run.as_ref().and_then(|run| run.leader).is_some_and(|it| it.0 == leader)
        };
        let followers: Vec<u64> =
            self.sequences.iter().filter(|(_, it)| follows(it)).map(|(&id, _)| id).collect();
        for id in followers {
            let other = self.leader_for(id);
            self.set_leader(id, other);
        }
    }

    fn set_leader(&mut self, id: u64, leader: Option<(u64, usize)>) {
        if let Some(run) = self.sequences.get_mut(&id).and_then(|sequence| sequence.run.as_mut()) {
            run.leader = leader;
        }
    }
}
