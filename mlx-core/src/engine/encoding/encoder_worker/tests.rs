//! The loop of an encoder with a fake encoder that records its passes.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::backend::Backend;
use crate::engine::canceller::Canceller;
use crate::engine::client::{Client, Priority};
use crate::engine::constraint::Grammars;
use crate::engine::engine_loop::Message;
use crate::engine::event::{Event, Finished};
use crate::engine::jobs::JobLoop;
use crate::engine::options::{EngineOptions, Exactness};
use crate::engine::outlet::Outlet;
use crate::engine::request::{CheckedRequest, RequestOptions, Task};
use crate::engine::stats::Gauges;
use crate::error::Error;
use crate::folder::ModelFolder;
use crate::model::{self, ModelSpec};
use crate::sentence_transformers::Pooling;
use crate::weights::WeightPolicy;

/// Tokens at which the fake encoder fails, panics or returns a number that is not finite, always or only in a shared pass.
const FAILS: u32 = 90;
const PANICS: u32 = 91;
const NAN: u32 = 92;
const NAN_IN_COMPANY: u32 = 93;

type Passes = Rc<RefCell<Vec<Vec<u32>>>>;

/// Returns the second token of each text as its vector.
struct Fake(Passes);

impl Encoder for Fake {
    fn vectors(&self, texts: &[TextTokens], _rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<u32> = texts.iter().map(|text| text.ids[1]).collect();
        self.0.borrow_mut().push(tokens.clone());
        assert!(!tokens.contains(&PANICS), "a text that panics");
        if tokens.contains(&FAILS) {
            return Err(Error::Mlx("a text that fails".into()));
        }
        let is_nan = |id: u32| id == NAN || id == NAN_IN_COMPANY && tokens.len() > 1;
        Ok(tokens.iter().map(|&id| vec![if is_nan(id) { f32::NAN } else { id as f32 }]).collect())
    }

    fn logits(&self, texts: &[TextTokens], rows: &[Vec<PoolRow>]) -> Result<Vec<Vec<f32>>> {
        self.vectors(texts, rows)
    }

    fn head_reads_mean(&self) -> bool {
        false
    }
}

struct Bench {
    engine: JobLoop<EncoderWorker<Fake>>,
    messages: Sender<Message>,
    receiver: Receiver<Message>,
    passes: Passes,
    folder: ModelFolder,
    spec: ModelSpec,
}

type Events = async_channel::Receiver<Event>;

impl Bench {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/encoders/bert-f32");
        let (spec, _) =
            model::inspect(&path, WeightPolicy::new(Backend::CPU, true)).expect("it is described");
        let options = EngineOptions {
            backend: Some(Backend::CPU),
            memory_budget: Some(64 << 20),
            ..EngineOptions::default()
        };
        let capacity = EncoderCapacity::of(&spec, &options).expect("it fits");
        let (passes, gauges) = (Passes::default(), Arc::new(Gauges::default()));
        let memory = capacity.memory;
        let worker = EncoderWorker::new(Fake(Rc::clone(&passes)), capacity);
        let engine = JobLoop::new(worker, memory, MAX_RUNNING, &options, gauges);
        let (messages, receiver) = channel();
        let folder = ModelFolder::open(&path).expect("it is read");
        Self { engine, messages, receiver, passes, folder, spec }
    }

    /// Submits a request of a client with one text for each of these tokens.
    fn submit(&self, client: u64, tokens: &[u32], exact: bool) -> Vec<Events> {
        let options = RequestOptions {
            task: Task::Embed(Pooling::Mean.into()),
            client: Client(client),
            priority: Priority::Normal,
            ..RequestOptions::default()
        };
        let (mut submissions, mut all) = (Vec::new(), Vec::new());
        for token in tokens {
            let prompt = vec![2, *token, 3];
            let request =
                CheckedRequest::new(prompt, &options, &self.folder, &self.spec, &Grammars::default());
            let mut request = request.expect("it can run");
            request.exactness = if exact { Exactness::Bit } else { Exactness::Sampling };
            let (sink, events) = async_channel::unbounded();
            submissions
                .push(Submission { request, outlet: Outlet::new(sink.into(), Canceller::default(), "") });
            all.push(events);
        }
        self.messages.send(Message::Submit(submissions)).expect("the engine runs");
        all
    }

    fn run(&mut self) {
        self.engine.run_jobs(&self.receiver);
    }
}

/// Returns the vector and the reason of a text's end.
fn outcome(events: &Events) -> (Option<f32>, FinishReason) {
    let mut vector = None;
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Embedding(numbers) => vector = Some(numbers[0]),
            Event::Done(Finished { reason, .. }) => return (vector, reason),
            _ => {}
        }
    }
    panic!("the text has not ended");
}

#[test]
fn texts_share_passes_and_each_gets_its_own_vector() {
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new();
    let tokens: Vec<u32> = (4..84).collect();
    let all = bench.submit(1, &tokens, false);
    bench.run();
    let vectors: Vec<_> = all.iter().map(outcome).collect();
    assert!(vectors.iter().zip(&tokens).all(|(it, token)| it.0 == Some(*token as f32)));
    assert!(vectors.iter().all(|it| it.1 == FinishReason::Length));
    assert_eq!(bench.passes.borrow().len(), 1, "80 texts of 3 tokens fit one pass");
    let alone = bench.submit(1, &[5, 6], true);
    bench.run();
    assert_eq!(alone.iter().map(|it| outcome(it).0).collect::<Vec<_>>(), [Some(5.0), Some(6.0)]);
    assert_eq!(bench.passes.borrow()[1..], [vec![5], vec![6]], "exact texts share no pass");
}

#[test]
fn only_the_text_at_fault_fails() {
    let _turn = crate::device_lock::device();
    for (fault, said) in [(FAILS, "a text that fails"), (PANICS, "a text that panics"), (NAN, "NaN")] {
        let mut bench = Bench::new();
        let all = bench.submit(1, &[4, fault, 6], false);
        bench.run();
        let outcomes: Vec<_> = all.iter().map(outcome).collect();
        assert_eq!([outcomes[0].0, outcomes[1].0, outcomes[2].0], [Some(4.0), None, Some(6.0)]);
        assert!(matches!(&outcomes[1].1, FinishReason::Error(message) if message.contains(said)));
    }
}

#[test]
fn a_number_that_is_not_finite_only_in_company_is_computed_again() {
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new();
    let all = bench.submit(1, &[4, NAN_IN_COMPANY, 6], false);
    bench.run();
    let vectors: Vec<_> = all.iter().map(|events| outcome(events).0).collect();
    assert_eq!(vectors, [Some(4.0), Some(NAN_IN_COMPANY as f32), Some(6.0)]);
    assert_eq!(bench.passes.borrow()[1..], [vec![NAN_IN_COMPANY]], "only this text is repeated");
}

#[test]
fn a_client_does_not_wait_for_all_texts_of_another_and_cancelled_texts_are_dropped() {
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new();
    let many: Vec<u32> = std::iter::repeat_n(7, 2000).collect();
    let mut first = bench.submit(1, &many, true);
    let gone = first.split_off(1000);
    drop(gone);
    let other = bench.submit(2, &[8], true);
    bench.run();
    let passes = bench.passes.borrow();
    let place = passes.iter().position(|pass| pass == &[8]).expect("it was computed");
    assert!(place < 3, "the other client waited for {place} passes");
    assert_eq!(passes.len(), 1001, "cancelled texts are not computed");
    assert_eq!(outcome(&other[0]).0, Some(8.0));
    assert!(first.iter().all(|events| outcome(events).0 == Some(7.0)));
}
