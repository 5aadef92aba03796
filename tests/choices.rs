//! A request that requires one of several texts gets one of them, whatever the model would write.

use chat_format::{ConstraintSpec, Grammar};
use mlx_core::engine::{FinishReason, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::{collect, device, engine};

const CHOICES: [&str; 4] = ["yes", "no", "not at all", "é🦀"];

fn options(seed: u64, constraint: ConstraintSpec) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(3.0), seed: Some(seed), ..SamplingOptions::default() },
        constraint: Some(constraint),
        ..RequestOptions::default()
    }
}

fn choices() -> ConstraintSpec {
    Grammar::Choices(CHOICES.iter().map(ToString::to_string).collect()).into()
}

#[test]
fn every_answer_is_a_choice_and_every_choice_is_an_answer() {
    let _turn = device();
    let engine = engine("llama-f32");
    let mut seen = [0; CHOICES.len()];
    // Runs in the same steps as a sequence without a constraint.
    let free = RequestOptions { constraint: None, max_tokens: Some(200), ..options(7, choices()) };
    let free = engine.submit(engine.request(vec![1, 9, 30], &free).expect("valid")).expect("room");
    let requests =
        (0..80).map(|seed| engine.request(vec![1, 9, 30], &options(seed, choices())).expect("valid"));
    for generation in engine.submit_all(requests.collect()).expect("room") {
        let outcome = collect(generation);
        let choice = CHOICES.iter().position(|choice| *choice == outcome.text);
        seen[choice.unwrap_or_else(|| panic!("{:?} is no choice", outcome.text))] += 1;
        assert_eq!(outcome.finished.reason, FinishReason::EndToken, "{:?}", outcome.text);
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert!(!CHOICES.contains(&collect(free).text.as_str()));
}
