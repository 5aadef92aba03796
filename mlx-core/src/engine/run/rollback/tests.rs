//! Tests that any sequence of generation and rollbacks gives the same result as an uninterrupted run.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::array::Rows;
use crate::engine::constraint::Grammars;
use crate::engine::outlet::Outlet;
use crate::engine::output::{accept, emit};
use crate::engine::request::CheckedRequest;
use crate::engine::run::prefill_chunk::PrefillChunk;
use crate::engine::schedule::Need;
use crate::engine::schedule::plan::Next;
use crate::engine::sequence::Wait;
use crate::engine::{Canceller, EngineOptions, Event, RequestOptions};
use crate::error::Result;
use crate::folder::ModelFolder;
use crate::model::{self, LogitRows};
use crate::sampling::{
    Constraint, Cursor, DrawRequest, Sampler, SamplingOptions, Scratch, Since, TokenHistory, TokenMask,
};
use crate::weights::WeightPolicy;

/// A substitute for a grammar: a follower of the history that forbids tokens depending on all tokens before.
#[derive(Default)]
struct Sieve {
    cursor: Cursor,
    /// A hash of the tokens up to each position.
    seen: Vec<u32>,
}

impl Constraint for Sieve {
    fn restrict(&mut self, history: &TokenHistory, allowed: &mut TokenMask) -> Result<()> {
        let (kept, tail) = match history.since(&mut self.cursor) {
            Since::Append(tail) => (self.seen.len(), tail),
            Since::Truncated { to, tail } => (to, tail),
        };
        self.seen.truncate(kept);
        for &token in tail {
            let before = self.seen.last().copied().unwrap_or(0);
            self.seen.push(before.wrapping_mul(31).wrapping_add(token));
        }
        let seen = self.seen.last().copied().unwrap_or(0);
        (0..320).filter(|token| (token ^ seen).is_multiple_of(3)).for_each(|token| allowed.forbid(token));
        Ok(())
    }
}

struct Bench {
    device: Device,
    folder: ModelFolder,
    spare: crate::engine::capacity::Capacity,
    exact: bool,
}

impl Bench {
    fn new(exact: bool) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/llama-f32");
        let policy = WeightPolicy::for_device(false).expect("a device");
        let model = model::load(&path, policy, &mut |_, _| {}).expect("the fixture loads");
        let options = EngineOptions { exact, ..EngineOptions::single() };
        let (device, spare) = Device::new(vec![model], None, &options).expect("there is room");
        Self { device, folder: ModelFolder::open(&path).expect("the fixture loads"), spare, exact }
    }

    /// Creates a running sequence with all followers of a history.
    fn run(&self, prompt: &[u32]) -> Running<'_> {
        let options = RequestOptions {
            sampling: SamplingOptions {
                temperature: Some(0.9),
                repetition_penalty: Some(1.2),
                frequency_penalty: Some(0.3),
                penalty_last_n: Some(12),
                dry_multiplier: Some(0.8),
                dry_allowed_length: Some(1),
                seed: Some(7),
                ..SamplingOptions::default()
            },
            stop: vec!["never said".into()],
            ignore_eos: true,
            exact: Some(self.exact),
            logprobs: Some(2),
            ..RequestOptions::default()
        };
        let request = CheckedRequest::new(
            prompt.to_vec(),
            &options,
            &self.folder,
            self.device.model(0).spec(),
            &Grammars::default(),
        );
        let request = request.expect("it is valid");
        let reservation = self.spare.initial_reservation(&request);
        let (sink, events) = async_channel::unbounded();
        let mut sequence = Sequence::new(
            request,
            Outlet::new(sink.into(), Canceller::default(), ""),
            reservation,
            &self.folder,
        );
        sequence.sampler = sequence.sampler.with_constraint(Box::new(Sieve::default()));
        sequence.start(self.device.new_state(0), Wait::Nothing);
        Running { bench: self, sequence, events, bits: Vec::new(), text: String::new() }
    }
}

struct Running<'a> {
    bench: &'a Bench,
    sequence: Sequence,
    events: async_channel::Receiver<Event>,
    /// The log-probabilities of each generated token, as bits.
    bits: Vec<(u32, u32)>,
    text: String,
}

impl Running<'_> {
    fn generate(&mut self, tokens: usize) {
        for _ in 0..tokens {
            let logits = self.logits();
            let Sequence { sampler, history, .. } = &mut self.sequence;
            let mut row = [DrawRequest { row: 0, sampler, history }];
            let mut draws =
                Sampler::draw(&logits, &mut row, &mut Scratch::default()).expect("it is computed");
            let draw = draws.pop().expect("one row").expect("some token is allowed");
            let logprob = draw.logprob.as_ref().expect("it was asked for").logprob;
            self.bits.push((draw.token, logprob.to_bits()));
            let accepted = accept(0, &mut self.sequence, draw);
            assert_eq!(emit(&mut self.sequence, accepted), None);
            while let Ok(event) = self.events.try_recv() {
                if let Event::Token(token) = event {
                    self.text.push_str(&token.text);
                }
            }
        }
    }

    /// Computes until a token can be drawn.
    fn logits(&mut self) -> Rows {
        let device = &self.bench.device;
        loop {
            let view = self.sequence.view(0, Need::default());
            let tokens = self.sequence.history.tokens().to_vec();
            let state = &mut self.sequence.running().state;
            let offset = state.offset();
            let Some(range) = device.shapes().next_chunk(&view) else {
                return device
                    .decode(0, &[(tokens[offset], offset)], &mut [state], view.exact)
                    .expect("it starts");
            };
            let is_end = view.next() == Next::Prompt(range.end);
            let chunk = PrefillChunk::of_text(&tokens[range], offset, LogitRows::Last);
            let pass = match view.next() {
                Next::Replay(_) if view.exact => device.begin_replay(0, &chunk),
                _ => device.begin_prefill(0, &[chunk]),
            };
            let mut pass = pass.expect("it begins");
            device.advance(0, &mut pass, device.layers(), &mut [state]).expect("it starts");
            state.eval().expect("it is computed");
            if is_end {
                return device.logits(0, &pass).expect("it starts");
            }
        }
    }

    fn roll_back(&mut self, length: usize) {
        self.sequence.rollback(length, &self.bench.device);
        self.bits.truncate(self.sequence.history.generated().len());
    }
}

const LENGTH: usize = 30;

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|place| (place * 7) % 80 + 5).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn any_way_back_and_forth_equals_the_straight_run(
        exact: bool,
        length in 1..150usize,
        actions in proptest::collection::vec((0..12usize, 0..20usize), 1..8),
        last in 1..150usize,
    ) {
        let _turn = crate::device_lock::device();
        // Without exactness, a rollback recomputes a prompt's last token in another shape, so its bits differ.
        let seen = |tokens: &[(u32, u32)]| -> Vec<(u32, u32)> {
            tokens.iter().map(|&(token, bits)| (token, if exact { bits } else { 0 })).collect()
        };
        let bench = Bench::new(exact);
        let prompt = prompt(length);
        let mut straight = bench.run(&prompt);
        straight.generate(LENGTH);
        let mut running = bench.run(&prompt);
        for (tokens, back) in actions {
            let done = running.bits.len();
            running.generate(tokens.min(LENGTH - done));
            let now = running.bits.len();
            prop_assert_eq!(seen(&running.bits), seen(&straight.bits[..now]));
            running.roll_back(length + now.saturating_sub(back));
            let state = &running.sequence.running().state;
            let computed = state.offset();
            prop_assert!(computed < running.sequence.history.len());
        }
        running.generate(LENGTH - running.bits.len());
        prop_assert_eq!(seen(&running.bits), seen(&straight.bits));
        prop_assert_eq!(&running.text, &straight.text);
        // Back into the prompt: the continuation equals that of a shorter prompt.
        let shorter = last.min(length);
        let mut fresh = bench.run(&prompt[..shorter]);
        fresh.generate(5);
        running.roll_back(shorter);
        running.bits.clear();
        running.generate(5);
        prop_assert_eq!(seen(&running.bits), seen(&fresh.bits));
    }
}
