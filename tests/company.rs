//! On a GPU backend, where the sequences of a step attend in one batch, concurrent seeded requests get the same tokens as separate ones. Exact requests keep
//! their bits.

use mlx_core::backend::Backend;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, collect, device, greedy, model_folder, run};

/// Families with different kinds of layer state.
const KINDS: [&str; 6] = [
    "llama-rope3-f32",
    "gemma3_text-f32",
    "qwen3_5-f32",
    "falcon_h1-f32",
    "deepseek_v3-f32",
    "gemma4_text-f32",
];

fn start(name: &str, backend: Backend) -> Engine {
    let options = EngineOptions { backend: Some(backend), ..EngineOptions::default() };
    Engine::start(&model_folder(name), &options, |_, _| {}).expect("it loads")
}

/// Returns a prompt and its options.
fn request(dice: &mut Dice, exact: bool) -> (Vec<u32>, RequestOptions) {
    let length = 1 + dice.below(50) * (1 + dice.below(4));
    let prompt = (0..length).map(|_| dice.below(60) as u32 + 8).collect();
    let seed = Some(dice.below(1000) as u64);
    let sampling = SamplingOptions { temperature: Some(1.0), seed, ..SamplingOptions::default() };
    let options = greedy(4 + dice.below(20));
    (prompt, RequestOptions { sampling, exact: Some(exact), logprobs: Some(0), ..options })
}

fn bits(outcome: &Outcome) -> Vec<u32> {
    outcome.tokens.iter().filter_map(|token| Some(token.logprob.as_ref()?.logprob.to_bits())).collect()
}

/// Runs requests together, each joining after the previous one, and compares them with single runs. Every `nth` is exact.
fn compare(name: &str, backend: Backend, count: usize, nth: Option<usize>) {
    let mut dice = Dice::new(23);
    let is_exact = |place: usize| nth.is_some_and(|nth| place.is_multiple_of(nth));
    let requests: Vec<_> = (0..count).map(|place| request(&mut dice, is_exact(place))).collect();
    let (together, alone) = (start(name, backend), start(name, backend));
    for requests in requests.chunks(32) {
        let submit = |(prompt, options): &(Vec<u32>, RequestOptions)| {
            let request = together.request(prompt.clone(), options).expect("valid");
            together.submit(request).expect("room")
        };
        let submitted: Vec<_> = requests.iter().map(submit).collect();
        for (generation, (prompt, options)) in submitted.into_iter().zip(requests) {
            let (found, expected) = (collect(generation), run(&alone, prompt, options));
            assert_eq!(found.ids(), expected.ids(), "{name}: a prompt of {} tokens", prompt.len());
            let exact = options.exact == Some(true);
            assert!(!exact || bits(&found) == bits(&expected), "{name}: other bits");
        }
    }
}

#[test]
fn seeded_requests_get_the_tokens_that_they_get_alone() {
    let _turn = device();
    for name in KINDS {
        compare(name, Backend { keep_float_type: false, ..Backend::GPU }, cases(14), None);
    }
}

/// Steps with an exact request run row by row; the steps before and after it run in one batch.
#[test]
fn exact_requests_among_others_get_the_bits_that_they_get_alone() {
    let _turn = device();
    for name in ["llama-rope3-f32", "qwen3_5-f32"] {
        compare(name, Backend { batched_decode: true, ..Backend::CPU }, cases(12), Some(4));
    }
}
