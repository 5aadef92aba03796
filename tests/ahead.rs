//! Pipelined steps, which begin before the previous step's tokens are drawn, change only the speed. `MLX_TEST_SCALE=17` makes a long run.

use mlx_core::backend::Backend;
use mlx_core::engine::{EngineOptions, FinishReason, Pipeline, RequestOptions, Speculate};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::requests::{Request, assert_equal, request, run_under_load};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, cpu, model_folder, run};

use super::exactness::{models, start};

const BACKEND: Backend = Backend { pipelined: true, lookahead: true, ..Backend::CPU };

/// Random requests per model.
const REQUESTS: usize = 6;

#[test]
fn steps_that_begin_early_change_nothing_whether_the_guesses_are_right_or_not() {
    let _turn = cpu();
    let (mut kept, mut dropped) = (0, 0);
    for (folder, dtype) in models() {
        let speculate = Speculate::Off;
        let plain = EngineOptions { prefix_cache: Some(0), dtype, speculate, ..EngineOptions::single() };
        let single = start(&folder, &plain);
        let name = format!("{} in {}", folder.display(), single.spec().dtype);
        let mut dice = Dice::new(21);
        let requests: Vec<Request> = (0..cases(REQUESTS)).map(|_| request(&mut dice, &single)).collect();
        let expected: Vec<Outcome> =
            requests.iter().map(|it| run(&single, &it.prompt, &it.options)).collect();
        assert_eq!(single.stats().steps_ahead, 0, "{name}: a CPU gains nothing by it");
        drop(single);
        let compare = |outcomes: &[Outcome], how: &str| {
            for (index, (expected, outcome)) in expected.iter().zip(outcomes).enumerate() {
                assert_equal(expected, outcome, &format!("{name}, {how}, request {index}"));
            }
        };
        let early = EngineOptions { backend: Some(BACKEND), force_drafts: true, ..plain };
        let engine = start(&folder, &early);
        let alone: Vec<Outcome> = requests.iter().map(|it| run(&engine, &it.prompt, &it.options)).collect();
        compare(&alone, "alone");
        let stats = engine.stats();
        assert!(stats.steps_ahead > stats.steps_dropped, "{name}: {stats:?}");
        (kept, dropped) = (kept + stats.steps_ahead - stats.steps_dropped, dropped + stats.steps_dropped);
        drop(engine);
        let crowded = EngineOptions { max_running: 5, prefix_cache: None, ..early };
        let engine = start(&folder, &crowded);
        compare(&run_under_load(&engine, &requests), "in company");
        drop(engine);
        let drafting =
            EngineOptions { speculate: Speculate::Auto, force_drafts: false, max_running: 2, ..crowded };
        let engine = start(&folder, &drafting);
        compare(&run_under_load(&engine, &requests), "beside drafts");
    }
    assert!(kept > dropped && dropped > 0, "{kept} steps began early and were kept, {dropped} were dropped");
}

/// Returns the number of pipelined steps and of dropped ones for these options.
fn steps(sampling: SamplingOptions, pipeline: Pipeline) -> (u64, u64) {
    let options = EngineOptions {
        backend: Some(BACKEND),
        pipeline,
        speculate: Speculate::Off,
        ..EngineOptions::single()
    };
    let engine = start(&model_folder("llama-f32"), &options);
    let request =
        RequestOptions { sampling, max_tokens: Some(60), ignore_eos: true, ..RequestOptions::default() };
    let outcome = run(&engine, &[3, 9, 30], &request);
    assert_eq!(outcome.finished.reason, FinishReason::Length);
    let stats = engine.stats();
    (stats.steps_ahead, stats.steps_dropped)
}

#[test]
fn every_step_but_the_first_begins_early_where_tokens_can_be_guessed() {
    let _turn = cpu();
    let with = |temperature| SamplingOptions {
        temperature: Some(temperature),
        top_k: Some(0),
        top_p: Some(1.0),
        seed: Some(3),
        ..SamplingOptions::default()
    };
    // The prompt gives the first token, and a separate step the second.
    assert_eq!(steps(with(0.0), Pipeline::Auto), (58, 0));
    assert_eq!(steps(with(0.9), Pipeline::Auto), (58, 0));
    assert_eq!(steps(SamplingOptions { min_p: Some(0.2), ..with(0.9) }, Pipeline::Auto), (58, 0));
    assert_eq!(steps(with(0.0), Pipeline::Off), (0, 0));
    let repetition_penalty = Some(1.2);
    assert_eq!(steps(SamplingOptions { repetition_penalty, ..with(0.0) }, Pipeline::Auto), (58, 0));
    assert_eq!(steps(SamplingOptions { repetition_penalty, ..with(0.9) }, Pipeline::Auto), (58, 0));
    let dry_multiplier = Some(0.8);
    let logit_bias = vec![(7, 1.5), (9, -100.0)];
    assert_eq!(steps(SamplingOptions { dry_multiplier, logit_bias, ..with(0.9) }, Pipeline::Auto), (58, 0));
    // Few guesses are right, so few are made.
    let (ahead, dropped) = steps(SamplingOptions { top_k: Some(2), ..with(1.5) }, Pipeline::Auto);
    assert!(dropped > 0 && ahead < 30, "{dropped} of {ahead} were dropped");
}
