//! Tests that a loop with inconsistent records continues with the intact sequences, and that its gauges are right.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::engine::admission::Submission;
use crate::engine::canceller::Canceller;
use crate::engine::capacity::Capacity;
use crate::engine::constraint::Grammars;
use crate::engine::engine_loop::Resources;
use crate::engine::media::{EncoderCache, Towers};
use crate::engine::outlet::Outlet;
use crate::engine::request::CheckedRequest;
use crate::engine::run::device::Device;
use crate::engine::stats::Gauges;
use crate::engine::{EngineOptions, Event, RequestOptions};
use crate::folder::ModelFolder;
use crate::model::{self, ModelSpec};
use crate::sampling::SamplingOptions;
use crate::weights::WeightPolicy;

type Events = async_channel::Receiver<Event>;

const TOKENS: usize = 12;

struct Bench {
    engine: EngineLoop,
    spec: ModelSpec,
    folder: Arc<ModelFolder>,
    memory: Capacity,
    panics: usize,
}

impl Bench {
    /// Starts an engine that runs one sequence at a time.
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/llama-f32");
        let policy = WeightPolicy::for_device(false).expect("a device");
        let model = model::load(&path, policy, &mut |_, _| {}).expect("the fixture loads");
        let spec = model.spec().clone();
        let options = EngineOptions::single();
        let (device, capacity) = Device::new(vec![model], None, &options).expect("there is room");
        let folder = Arc::new(ModelFolder::open(&path).expect("the fixture loads"));
        let images = EncoderCache::new(Towers::default(), device.vocabulary());
        let (for_engine, gauges) = (Arc::clone(&folder), Arc::<Gauges>::default());
        let memory = capacity.clone();
        let resources = Resources { device, draft_model: None, encoder_cache: images, capacity, disk: None };
        let engine = EngineLoop::new(resources, for_engine, &options, gauges).expect("it starts");
        Self { engine, spec, folder, memory, panics: 0 }
    }

    /// Submits a request of one sequence per prompt.
    fn submit(&mut self, prompts: &[Vec<u32>]) -> Vec<Events> {
        let options = RequestOptions {
            max_tokens: Some(TOKENS),
            ignore_eos: true,
            sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
            ..RequestOptions::default()
        };
        let (mut submissions, mut all) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let grammars = Grammars::default();
            let request = CheckedRequest::new(prompt.clone(), &options, &self.folder, &self.spec, &grammars);
            let request = self.memory.check(request.expect("valid")).expect("there is room");
            let (sink, events) = async_channel::unbounded();
            let outlet = Outlet::new(sink.into(), Canceller::default(), "");
            self.engine.gauges.waiting_tokens.fetch_add(request.weight(), Ordering::Relaxed);
            submissions.push(Submission { request, outlet });
            all.push(events);
        }
        self.engine.gauges.waiting.fetch_add(1, Ordering::Relaxed);
        self.engine.queue(submissions);
        all
    }

    /// Submits a request for each prompt.
    fn submit_each(&mut self, prompts: &[Vec<u32>]) -> Vec<Events> {
        prompts.chunks(1).flat_map(|prompt| self.submit(prompt)).collect()
    }

    fn step(&mut self) {
        let engine = &mut self.engine;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| engine.step())) {
            self.panics += 1;
            assert!(engine.survive(&*panic), "it goes on");
        }
    }

    /// Runs steps until all sequences have ended.
    fn finish(&mut self) {
        for _ in 0..1000 {
            if self.engine.sequences.is_empty() {
                let Gauges { waiting, waiting_tokens, running, .. } = &*self.engine.gauges;
                let figures = [waiting, waiting_tokens, running].map(|it| it.load(Ordering::Relaxed));
                assert_eq!(figures, [0; 3], "nothing waits or runs");
                assert_eq!(self.engine.admission.free(), self.memory.shared());
                assert_eq!(self.engine.admission.ids(), [0_u64; 0]);
                return;
            }
            self.step();
        }
        panic!("it never ends: {:?}", self.engine.admission.ids());
    }
}

fn prompts() -> Vec<Vec<u32>> {
    (0..4).map(|salt| (0..10 + salt).map(|place| (place * 7 + salt * 13) % 80 + 5).collect()).collect()
}

/// Returns the tokens of a sequence, and its error if it failed.
fn read(events: &Events) -> (Vec<u32>, Option<String>) {
    let (mut tokens, mut error) = (Vec::new(), Some("cut off".to_owned()));
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Done(done) => {
                error = match done.reason {
                    FinishReason::Error(message) => Some(message),
                    _ => None,
                }
            }
            _ => {}
        }
    }
    (tokens, error)
}

fn expected() -> Vec<Vec<u32>> {
    let mut bench = Bench::new();
    let all = bench.submit_each(&prompts());
    bench.finish();
    assert_eq!(bench.panics, 0);
    all.iter().map(|events| read(events).0).collect()
}

/// The result of a sequence in an engine with a fault, and its tokens in an engine without one.
struct Answer {
    tokens: Vec<u32>,
    error: Option<String>,
    expected: Vec<u32>,
}

impl Answer {
    fn assert_unchanged(self, index: usize) {
        assert_eq!((self.tokens, self.error), (self.expected, None), "sequence {index}");
    }
}

/// Damages an engine after three steps, and lets it finish. Returns its number of panics, and the answers.
fn answers_after(fault: impl FnOnce(&mut Bench)) -> (usize, Vec<Answer>) {
    let _turn = crate::device_lock::device();
    let expected = expected();
    let mut bench = Bench::new();
    let all = bench.submit_each(&prompts());
    for _ in 0..3 {
        bench.step();
    }
    fault(&mut bench);
    bench.finish();
    let answers = all.iter().zip(expected).map(|(events, expected)| {
        let (tokens, error) = read(events);
        Answer { tokens, error, expected }
    });
    (bench.panics, answers.collect())
}

#[test]
fn a_stale_id_costs_no_other_sequence_anything() {
    // The second sequence waits, since the engine runs one at a time.
    let (panics, answers) = answers_after(|bench| drop(bench.engine.sequences.remove(2)));
    assert!(panics > 0, "the scheduler named a sequence that does not exist");
    for (index, answer) in answers.into_iter().enumerate() {
        if index == 1 {
            assert_eq!((answer.tokens, answer.error.as_deref()), (Vec::new(), Some("cut off")));
        } else {
            answer.assert_unchanged(index);
        }
    }
}

#[test]
fn a_sequence_that_lost_a_token_or_its_place_ends_with_an_error() {
    let (_, answers) = answers_after(|bench| {
        // The first has a token that will never be emitted, and the scheduler does not know the third.
        bench.engine.sequences.get_mut(1).history.push(9);
        bench.engine.admission.remove(3);
        assert!(bench.engine.survive(&"a panic of the test"));
    });
    for (index, answer) in answers.into_iter().enumerate() {
        if index % 2 == 0 {
            let Answer { tokens, error, expected } = answer;
            assert!(error.is_some_and(|it| it.contains("internal error") && !it.contains("of the test")));
            assert!(tokens.len() < TOKENS && expected.starts_with(&tokens));
        } else {
            answer.assert_unchanged(index);
        }
    }
}

#[test]
fn an_engine_that_only_panics_ends_with_an_error_for_all() {
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new();
    let all = bench.submit_each(&prompts());
    let panics = (0..100).take_while(|_| bench.engine.survive(&"a panic of the test")).count();
    assert_eq!(panics, MAX_IN_A_ROW);
    bench.finish();
    for events in &all {
        assert!(read(events).1.is_some_and(|error| error.contains("internal error")));
    }
}
