//! Random requests of any kind, alone and under load.

use std::sync::Mutex;
use std::time::Duration;

use mlx_core::engine::{Client, Engine, Priority, RequestOptions, Task};
use mlx_core::sampling::{SamplingDefaults, SamplingOptions, TokenLogprob};

use crate::{Dice, Outcome, run};

/// A random request of any kind.
#[derive(Clone)]
pub struct Request {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The options.
    pub options: RequestOptions,
}

fn sampling(dice: &mut Dice) -> SamplingOptions {
    SamplingOptions {
        temperature: Some(dice.pick(&[0.0, 0.0, 0.3, 0.8, 1.0, 1.4])),
        top_k: dice.sometimes(4, |dice| dice.below(60) as u32 + 1),
        typical_p: dice.sometimes(8, |dice| dice.pick(&[0.3, 0.9])),
        top_p: dice.sometimes(4, |dice| dice.pick(&[0.5, 0.9, 0.99])),
        min_p: dice.sometimes(4, |dice| dice.pick(&[0.01, 0.1])),
        xtc_probability: dice.sometimes(6, |_| 0.7),
        xtc_threshold: Some(dice.pick(&[0.01, 0.1])),
        repetition_penalty: dice.sometimes(4, |_| 1.3),
        frequency_penalty: dice.sometimes(4, |_| 0.4),
        presence_penalty: dice.sometimes(4, |_| 0.6),
        penalty_last_n: dice.sometimes(3, |dice| dice.pick(&[-1, 8, 40])),
        dry_multiplier: dice.sometimes(5, |_| 0.8),
        dry_allowed_length: Some(1),
        logit_bias: dice.sometimes(5, |dice| vec![(dice.below(90) as u32, 2.5)]).unwrap_or_default(),
        seed: Some(dice.below(1 << 30) as u64),
        ..SamplingOptions::default()
    }
}

/// Returns prompts with common prefixes; some are equal.
fn prompt(dice: &mut Dice, engine: &Engine) -> Vec<u32> {
    let longest = engine.spec().context_length / 2;
    let (family, length) = (dice.below(4), 1 + dice.below(longest - 1));
    let shared = dice.pick(&[0, length / 2, length, length]);
    let token = |place: usize, salt: usize| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32;
    let salt = dice.below(1000);
    (0..length).map(|place| token(place, if place < shared { family } else { salt })).collect()
}

/// Returns a random request that this engine can serve.
pub fn request(dice: &mut Dice, engine: &Engine) -> Request {
    let prompt = match dice.below(3) {
        // Equal prompts in flight are computed once.
        0 => vec![7; engine.spec().context_length / 3],
        _ => prompt(dice, engine),
    };
    let room = engine.spec().context_length - prompt.len();
    let stop = ["e", " a", "the", "zz", "\n"];
    let options = RequestOptions {
        speech: None,
        images: Vec::new(),
        audio: Vec::new(),
        sampling: sampling(dice),
        sampling_defaults: dice.pick(&[SamplingDefaults::OpenAi, SamplingDefaults::Chat]),
        max_tokens: Some((1 + dice.below(40)).min(room)),
        stop: dice.sometimes(3, |dice| vec![dice.pick(&stop).to_owned()]).unwrap_or_default(),
        ignore_eos: dice.below(2) == 0,
        logprobs: dice.sometimes(2, |dice| dice.below(21)),
        prompt_logprobs: dice.sometimes(6, |dice| dice.below(4)),
        task: Task::Generate,
        client: Client(dice.below(3) as u64),
        log_id: String::new(),
        priority: dice.pick(&[Priority::Low, Priority::Normal, Priority::High]),
        n_keep: None,
        exact: None,
        speculate: None,
        constraint: None,
        think_budget: None,
        begun: 0,
        is_continued: false,
        is_message: false,
        prompt_progress: dice.below(2) == 0,
        unpooled: 0,
        second: None,
    };
    Request { prompt, options }
}

/// Returns a concurrent request, which may not be exact.
fn stranger(dice: &mut Dice, engine: &Engine) -> Request {
    let mut request = request(dice, engine);
    request.options.exact = Some(dice.below(2) == 0);
    request
}

fn bits(logprob: Option<&TokenLogprob>) -> Option<(u32, Vec<(u32, u32)>)> {
    logprob.map(|it| (it.logprob.to_bits(), it.top.iter().map(|top| (top.0, top.1.to_bits())).collect()))
}

/// Compares two outcomes, except for timings and cache counts.
///
/// # Panics
/// If they differ.
pub fn assert_equal(alone: &Outcome, loaded: &Outcome, name: &str) {
    assert_eq!(alone.ids(), loaded.ids(), "{name}: tokens");
    assert_eq!(alone.text, loaded.text, "{name}: text");
    assert_eq!(alone.finished.reason, loaded.finished.reason, "{name}: reason");
    for (one, other) in alone.tokens.iter().zip(&loaded.tokens) {
        assert_eq!(bits(one.logprob.as_ref()), bits(other.logprob.as_ref()), "{name}: log-probabilities");
        assert_eq!((&one.text, &one.delta), (&other.text, &other.delta), "{name}: pieces of text");
    }
    assert_eq!(alone.prompt_tokens.len(), loaded.prompt_tokens.len(), "{name}: scored prompt");
    for (one, other) in alone.prompt_tokens.iter().zip(&loaded.prompt_tokens) {
        assert_eq!(bits(one.logprob.as_ref()), bits(other.logprob.as_ref()), "{name}: scores of the prompt");
    }
}

/// Runs the requests from several threads in random order, mixed with requests that are cancelled.
///
/// # Panics
/// If the engine does not run one.
pub fn run_under_load(engine: &Engine, requests: &[Request]) -> Vec<Outcome> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let mut dice = Dice::new(99);
    for place in (1..order.len()).rev() {
        order.swap(place, dice.below(place + 1));
    }
    let queue = Mutex::new(order);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; requests.len()]);
    let next = || queue.lock().expect("no worker panics").pop();
    std::thread::scope(|scope| {
        for worker in 0..10 {
            let (next, outcomes) = (&next, &outcomes);
            scope.spawn(move || {
                let mut dice = Dice::new(1000 + worker);
                while let Some(index) = next() {
                    std::thread::sleep(Duration::from_micros(dice.below(4000) as u64));
                    let Request { prompt, options } = &requests[index];
                    let stranger = dice.sometimes(3, |dice| stranger(dice, engine));
                    let stranger = stranger.map(|it| engine.request(it.prompt, &it.options).expect("valid"));
                    let mut stranger = stranger.map(|it| engine.submit(it).expect("room in the queue"));
                    let outcome = run(engine, prompt, options);
                    // It may be waiting, in its prompt or in its answer.
                    if let Some(stranger) = &mut stranger {
                        stranger.canceller().cancel();
                    }
                    outcomes.lock().expect("no worker panics")[index] = Some(outcome);
                }
            });
        }
    });
    outcomes.into_inner().expect("no worker panics").into_iter().map(|it| it.expect("all ran")).collect()
}
