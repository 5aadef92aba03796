//! What a draw costs, by vocabulary, by filter and by length of the history: `cargo bench -p mlx-core`.

use std::sync::Arc;

use divan::{Bencher, black_box};
use mlx_core::sampling::{
    DryOptions, Lexicon, PenaltyOptions, Sampler, SamplingOptions, SamplingParams, Scratch, Stream,
    TokenHistory, uniform,
};

const VOCABULARIES: [usize; 3] = [32_000, 151_936, 262_144];
const LENGTHS: [usize; 3] = [1_000, 8_000, 64_000];

fn main() {
    divan::main();
}

/// A row like a model's: normal, with a standard deviation of 2.8.
fn row(width: usize) -> Vec<f32> {
    let normal = |place: usize| {
        let sum: f64 = (0..12).map(|part| uniform(part, place as u64, Stream::Draw)).sum();
        ((sum - 6.0) * 2.8) as f32
    };
    (0..width).map(normal).collect()
}

fn options(temperature: f32) -> SamplingOptions {
    SamplingOptions { temperature: Some(temperature), seed: Some(1), ..SamplingOptions::default() }
}

fn sampler(options: &SamplingOptions, logprobs: Option<usize>) -> Sampler {
    let params = SamplingParams::resolve(options, &SamplingOptions::default()).expect("valid options");
    let lexicon = Lexicon { text: Arc::new(|id| id.to_le_bytes().to_vec()), protected: Arc::from([]) };
    Sampler::new(params, logprobs, &lexicon)
}

/// A history of `length` tokens that repeats itself now and then, as text does.
fn history(length: usize, width: usize) -> TokenHistory {
    let mut history = TokenHistory::new(Vec::new());
    (0..length).for_each(|place| history.push(token(place, width)));
    history
}

fn token(place: usize, width: usize) -> u32 {
    let share = uniform(99, place as u64, Stream::Draw);
    // Few tokens are common and many are rare.
    (share.powi(4) * width as f64) as u32
}

fn draws(bencher: Bencher, width: usize, options: &SamplingOptions, logprobs: Option<usize>) {
    let (row, mut sampler, mut scratch) = (row(width), sampler(options, logprobs), Scratch::default());
    let history = history(100, width);
    bencher.bench_local(|| sampler.draw_row(black_box(&row), &history, &mut scratch).expect("a draw"));
}

#[divan::bench(args = VOCABULARIES)]
fn greedy(bencher: Bencher, width: usize) {
    draws(bencher, width, &options(0.0), None);
}

#[divan::bench(args = VOCABULARIES)]
fn greedy_with_five_logprobs(bencher: Bencher, width: usize) {
    draws(bencher, width, &options(0.0), Some(5));
}

#[divan::bench(args = VOCABULARIES)]
fn temperature(bencher: Bencher, width: usize) {
    draws(bencher, width, &options(0.8), None);
}

#[divan::bench(args = VOCABULARIES)]
fn top_k(bencher: Bencher, width: usize) {
    draws(bencher, width, &SamplingOptions { top_k: Some(40), ..options(0.8) }, None);
}

#[divan::bench(args = VOCABULARIES)]
fn top_p(bencher: Bencher, width: usize) {
    draws(bencher, width, &SamplingOptions { top_p: Some(0.9), ..options(0.8) }, None);
}

#[divan::bench(args = VOCABULARIES)]
fn min_p(bencher: Bencher, width: usize) {
    draws(bencher, width, &SamplingOptions { min_p: Some(0.05), ..options(0.8) }, None);
}

#[divan::bench(args = VOCABULARIES)]
fn typical_p(bencher: Bencher, width: usize) {
    draws(bencher, width, &SamplingOptions { typical_p: Some(0.9), ..options(0.8) }, None);
}

#[divan::bench(args = VOCABULARIES)]
fn top_k_top_p_min_p(bencher: Bencher, width: usize) {
    let everything = SamplingOptions { top_k: Some(40), top_p: Some(0.9), min_p: Some(0.05), ..options(0.8) };
    draws(bencher, width, &everything, None);
}

/// Which penalties are on.
#[derive(Debug, Clone, Copy)]
enum On {
    Repetition,
    Frequency,
    Dry,
    All,
}

fn penalised(on: On) -> SamplingOptions {
    let repetition = matches!(on, On::Repetition | On::All).then_some(1.1);
    let frequency = matches!(on, On::Frequency | On::All).then_some(0.2);
    let multiplier = matches!(on, On::Dry | On::All).then_some(0.8);
    SamplingOptions {
        penalties: PenaltyOptions { repetition, frequency, presence: frequency, window: None },
        dry: DryOptions { multiplier, ..DryOptions::default() },
        ..options(0.0)
    }
}

/// Every length of the history with every vocabulary.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    LENGTHS.into_iter().flat_map(|length| VOCABULARIES.map(|width| (length, width)))
}

/// One token is appended and the next one drawn.
fn steps(bencher: Bencher, (length, width): (usize, usize), on: On) {
    let (row, mut sampler, mut scratch) = (row(width), sampler(&penalised(on), None), Scratch::default());
    let mut history = history(length, width);
    sampler.draw_row(&row, &history, &mut scratch).expect("a draw");
    bencher.bench_local(|| {
        history.push(token(history.len(), width));
        sampler.draw_row(black_box(&row), &history, &mut scratch).expect("a draw")
    });
}

#[divan::bench(args = shapes())]
fn step_with_repetition(bencher: Bencher, shape: (usize, usize)) {
    steps(bencher, shape, On::Repetition);
}

#[divan::bench(args = shapes())]
fn step_with_frequency_and_presence(bencher: Bencher, shape: (usize, usize)) {
    steps(bencher, shape, On::Frequency);
}

#[divan::bench(args = shapes())]
fn step_with_dry(bencher: Bencher, shape: (usize, usize)) {
    steps(bencher, shape, On::Dry);
}

#[divan::bench(args = shapes())]
fn step_with_all(bencher: Bencher, shape: (usize, usize)) {
    steps(bencher, shape, On::All);
}

/// The same after a rollback, which makes the state count the whole history again.
#[divan::bench(args = shapes())]
fn rebuild_with_all(bencher: Bencher, (length, width): (usize, usize)) {
    let (row, mut sampler, mut scratch) =
        (row(width), sampler(&penalised(On::All), None), Scratch::default());
    let mut history = history(length, width);
    bencher.bench_local(|| {
        history.truncate(length - 1);
        history.push(token(length, width));
        sampler.draw_row(black_box(&row), &history, &mut scratch).expect("a draw")
    });
}

/// A step of sixteen sequences with three penalties each.
#[divan::bench]
fn sixteen_rows_with_three_penalties(bencher: Bencher) {
    let options = penalised(On::Frequency);
    let options = SamplingOptions {
        penalties: PenaltyOptions { repetition: Some(1.1), window: Some(20), ..options.penalties },
        ..options
    };
    let (row, mut scratch) = (row(32_000), Scratch::default());
    let mut rows: Vec<_> = (0..16).map(|_| (sampler(&options, None), history(500, 32_000))).collect();
    bencher.bench_local(|| {
        for (sampler, history) in &mut rows {
            let token = sampler.draw_row(black_box(&row), history, &mut scratch).expect("a draw").token;
            history.push(token);
        }
    });
}
