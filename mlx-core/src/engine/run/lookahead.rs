//! Overlap of decode steps: the first layers of a step run on the device right after the last layers of the previous step, so that the
//! device has work while the host draws. Each half is issued once the arrays that it overwrites are computed; otherwise MLX would copy the
//! caches.

use std::time::Instant;

use super::decode_pass::DecodePass;
use super::device::Device;
use super::guess::Guess;
use crate::cache::SequenceState;
use crate::engine::sequence::Sequences;
use crate::error::Result;
use crate::model::{Batch, Input, Issued, Pass, Span};
use crate::sampling::pending_draw::PendingDraw;

/// The first layers of the next decode step, issued with guessed tokens.
pub(in crate::engine) struct Lookahead {
    /// The sequences of the step, in ascending order of id.
    pub(in crate::engine) ids: Vec<u64>,
    /// The time at which the previous step ended.
    pub(in crate::engine) since: Instant,
    adapter: usize,
    guess: Guess,
    pass: Pass,
    front: Issued,
}

impl Lookahead {
    /// Returns the guessed tokens. Waits until the device has computed them.
    pub(in crate::engine) fn tokens(&self) -> Result<&[u32]> {
        self.guess.tokens()
    }

    /// Waits for the issued layers.
    pub(in crate::engine) fn wait(&self) -> Result<()> {
        self.front.wait()
    }
}

impl Device {
    /// Issues the first layers of a pass separately, so that they can be waited for.
    pub(super) fn issue_first_half(
        &self,
        adapter: usize,
        pass: &mut Pass,
        states: &mut [&mut SequenceState],
    ) -> Result<Issued> {
        self.model(adapter).advance(pass, self.first_half(), states)?;
        pass.issue()
    }

    /// Begins a decode step with tokens on the device, one after each state.
    fn begin_guessed(
        &self,
        adapter: usize,
        tokens: &Guess,
        states: &[&mut SequenceState],
        exact: bool,
    ) -> Result<Pass> {
        let spans = states.iter().enumerate().map(|(state, it)| Span::row(state, it.offset())).collect();
        let batch = Batch::new(Input::Tokens(tokens.array().clone()), spans);
        self.model(adapter).begin(self.step(adapter, batch, states.len(), exact)?)
    }

    /// Issues the first layers of the next step, with the tokens that will probably be drawn from `decode`. Each sequence must have one row
    /// in that pass. Waits for the first layers of that pass.
    pub(super) fn look_ahead(
        &self,
        decode: &DecodePass,
        rows: &[PendingDraw],
        sequences: &mut Sequences,
    ) -> Result<Option<Lookahead>> {
        let Some(front) = &decode.front else { return Ok(None) };
        front.wait()?;
        let guess = Guess::of(&decode.logits, rows)?;
        let mut running = sequences.several_mut(&decode.ids);
        let adapter = running[0].adapter();
        let exact = running.iter().any(|it| it.exact());
        let mut states: Vec<&mut SequenceState> =
            running.iter_mut().map(|it| &mut it.running().state).collect();
        // A recurrent layer keeps a snapshot of the state that the guess replaces.
        for state in &mut states {
            state.record_snapshots(true);
        }
        let mut pass = self.begin_guessed(adapter, &guess, &states, exact)?;
        let front = self.issue_first_half(adapter, &mut pass, &mut states)?;
        Ok(Some(Lookahead { ids: decode.ids.clone(), since: Instant::now(), adapter, guess, pass, front }))
    }

    /// Issues the remaining layers of a pass after its guesses were confirmed.
    pub(super) fn finish(&self, lookahead: Lookahead, sequences: &mut Sequences) -> Result<DecodePass> {
        let Lookahead { ids, adapter, mut pass, front, .. } = lookahead;
        let mut running = sequences.several_mut(&ids);
        let mut states: Vec<&mut SequenceState> =
            running.iter_mut().map(|it| &mut it.running().state).collect();
        for state in &mut states {
            state.record_snapshots(false);
        }
        self.model(adapter).advance(&mut pass, self.layers(), &mut states)?;
        let logits = self.logits(adapter, &pass)?;
        Ok(DecodePass { rows: vec![1; ids.len()], ids, logits, hidden: None, front: Some(front) })
    }
}
