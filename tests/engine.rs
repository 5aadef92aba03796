//! The engine: finish reasons, isolation between requests, and repeatability.

use mlx_core::ModelFolder;
use mlx_core::engine::{Engine, EngineOptions, Event, FinishReason, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::{added, device, engine, golden, greedy, model_copy, model_folder, run};

fn sampled(seed: u64, tokens: usize) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(1.2), seed: Some(seed), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

#[test]
fn the_same_request_gives_the_same_tokens_and_another_seed_does_not() {
    let _turn = device();
    let engine = engine("llama-f32");
    let mut options = sampled(7, 40);
    options.logprobs = Some(3);
    let first = run(&engine, &[1, 9, 30], &options);
    // Other requests run in between and wait in the queue after it.
    run(&engine, &[4, 5], &sampled(8, 10));
    let again = engine.submit(engine.request(vec![1, 9, 30], &options).expect("valid")).expect("it runs");
    let other = run(&engine, &[1, 9, 30], &sampled(8, 40));
    let tokens: Vec<_> = again
        .filter_map(|event| match event {
            Event::Token(token) => Some(token),
            Event::PromptProgress { .. }
            | Event::Prompt(_)
            | Event::Embedding(_)
            | Event::Scores(_)
            | Event::Window(_)
            | Event::Done(_) => None,
        })
        .collect();
    assert_eq!(tokens, first.tokens);
    assert_ne!(other.ids(), first.ids());
}

#[test]
fn a_prompt_that_is_read_in_chunks_reports_how_far_it_was_read() {
    let _turn = device();
    let engine = engine("llama-f32");
    let prompt: Vec<u32> = (0..200).map(|place| 5 + place % 90).collect();
    let read = |prompt_progress| -> Vec<usize> {
        let options = RequestOptions { prompt_progress, ..sampled(7, 1) };
        let request = engine.request(prompt.clone(), &options).expect("valid");
        let events = engine.submit(request).expect("it runs");
        let progress = events.filter_map(|event| match event {
            Event::PromptProgress { read, total, cached, seconds } => {
                assert_eq!(total, prompt.len());
                assert!(cached < read && seconds >= 0.0, "{cached} of {read} after {seconds} s");
                Some(read)
            }
            _ => None,
        });
        progress.collect()
    };
    let first = read(true);
    assert!(first.len() > 1 && first.is_sorted() && first.last() < Some(&prompt.len()), "{first:?}");
    assert!(read(false).is_empty());
}

#[test]
fn an_end_token_ends_the_text_and_is_reported() {
    let _turn = device();
    let name = "llama-mha-sharded-f32";
    let engine = engine(name);
    let case = golden::cases(name).cases.pop().expect("three cases");
    let at = case.tokens.iter().position(|&token| token == 4).expect("this text ends");
    let outcome = run(&engine, &case.prompt_ids, &RequestOptions { ignore_eos: false, ..greedy(32) });
    assert_eq!(outcome.finished.reason, FinishReason::EndToken);
    assert_eq!(outcome.ids(), case.tokens[..=at]);
    assert_eq!(outcome.tokens[at].text, "");
    assert_eq!(outcome.finished.usage.completion_tokens, at + 1);
}

/// Returns a copy of the model with this `generation_config.json`.
fn with_generation_config(text: &str) -> tempfile::TempDir {
    let copy = model_copy("llama-f32");
    std::fs::write(copy.path().join("generation_config.json"), text).expect("it can be written");
    copy
}

#[test]
fn generation_config_gives_defaults_that_a_request_overrides() {
    let _turn = device();
    let case = &golden::cases("llama-f32").cases[0];
    let end = case.tokens[3];
    let copy = with_generation_config(&format!("{{\"temperature\": 0, \"eos_token_id\": [{end}]}}"));
    let engine = Engine::start(copy.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let silent = RequestOptions { max_tokens: Some(20), ..RequestOptions::default() };
    let outcome = run(&engine, &case.prompt_ids, &silent);
    assert_eq!(
        (outcome.ids(), &outcome.finished.reason),
        (case.tokens[..4].to_vec(), &FinishReason::EndToken)
    );
    assert_eq!(
        outcome.text,
        engine.folder().tokenizer.decode(&case.tokens[..3], true),
        "the end is not text"
    );
    assert_ne!(run(&engine, &case.prompt_ids, &sampled(1, 20)).ids(), case.tokens[..20]);
}

#[test]
fn ends_of_text_and_the_newline_are_protected() {
    let folder = ModelFolder::open(&model_folder("llama-f32")).expect("it opens");
    let newline = *folder.tokenizer.encode("\n", false).expect("it encodes").last().expect("a token");
    for token in [2, 4, newline] {
        assert!(folder.token_table.protected.contains(&token), "{token}");
    }
    assert_eq!((folder.token_table.text)(newline), b"\n");
}

#[test]
fn a_queued_request_is_cancelled_at_once() {
    let _turn = device();
    let engine = engine("llama-f32");
    let submit = |tokens| engine.submit(engine.request(vec![1, 2], &sampled(1, tokens)).expect("valid"));
    let mut running = submit(250).expect("it runs");
    running.next();
    let queued = submit(250).expect("it waits");
    queued.canceller().cancel();
    let events: Vec<Event> = queued.collect();
    assert!(matches!(events.last(), Some(Event::Done(done)) if done.reason == FinishReason::Cancelled));
    assert_eq!(running.count(), 250, "the other request must continue: 249 tokens and the end event");
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let _turn = device();
    let engine = engine("llama-f32");
    let prompt = &golden::cases("llama-f32").cases[0].prompt_ids;
    let complete = run(&engine, prompt, &greedy(30));
    // The end of one token's text and the start of the next.
    let parts: Vec<&str> = complete.tokens.iter().map(|token| token.text.as_str()).collect();
    let (left, right) = parts
        .windows(2)
        .skip(4)
        .find_map(|pair| {
            let (last, first) = (pair[0].chars().last()?, pair[1].chars().next()?);
            Some((last, first))
        })
        .expect("two tokens with text");
    let stop = format!("{left}{right}");
    let outcome = run(&engine, prompt, &RequestOptions { stop: vec![stop.clone()], ..greedy(30) });
    let expected = complete.text.split(&stop).next().expect("a first part");
    assert_eq!(outcome.text, expected);
    assert_eq!(outcome.finished.reason, FinishReason::StopString(stop));
    assert!(outcome.ids().len() < 30);
}

#[test]
fn the_text_is_the_decoding_of_the_tokens() {
    let _turn = device();
    for name in ["llama-f32", "llama-spm-f32"] {
        let engine = engine(name);
        let tokenizer = &engine.folder().tokenizer;
        for seed in 0..8 {
            let outcome = run(&engine, &[1, 40], &sampled(seed, 60));
            assert_eq!(outcome.text, added(tokenizer, &[1, 40], &outcome.ids()), "{name}, seed {seed}");
            let message = run(&engine, &[1, 40], &RequestOptions { is_message: true, ..sampled(seed, 60) });
            assert_eq!(message.ids(), outcome.ids());
            assert_eq!(message.text, tokenizer.decode(&outcome.ids(), true), "{name}, seed {seed}");
        }
    }
}

#[test]
fn token_limits_are_kept() {
    let _turn = device();
    let engine = engine("llama-f32");
    let context = engine.spec().context_length;
    let none = run(&engine, &[1], &greedy(0));
    assert_eq!((none.ids().len(), none.finished.reason), (0, FinishReason::Length));
    let unlimited = RequestOptions { max_tokens: None, ..greedy(0) };
    let full = run(&engine, &vec![5; context - 3], &unlimited);
    assert_eq!((full.ids().len(), full.finished.reason), (3, FinishReason::Length));
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let _turn = device();
    let engine = engine("llama-f32");
    let refused = |prompt: Vec<u32>, options: RequestOptions| {
        engine.request(prompt, &options).expect_err("it must be refused").to_string()
    };
    let (context, vocabulary) = (engine.spec().context_length, engine.spec().vocab_size);
    assert!(refused(vec![], greedy(1)).starts_with("prompt: is empty"));
    assert!(refused(vec![1; context], greedy(1)).contains(&context.to_string()));
    assert!(refused(vec![vocabulary as u32], greedy(1)).contains(&vocabulary.to_string()));
    assert!(refused(vec![1], RequestOptions { stop: vec![String::new()], ..greedy(1) }).starts_with("stop:"));
    assert!(refused(vec![1], RequestOptions { logprobs: Some(21), ..greedy(1) }).starts_with("logprobs:"));
}

#[test]
fn a_dropped_or_cancelled_generation_frees_its_slot() {
    let _turn = device();
    let engine = engine("llama-f32");
    let endless = || engine.request(vec![1, 2], &sampled(1, 250)).expect("valid");
    let mut dropped = engine.submit(endless()).expect("it runs");
    assert!(matches!(dropped.next(), Some(Event::Token(_))));
    drop(dropped);
    let mut cancelled = engine.submit(endless()).expect("it runs");
    cancelled.next();
    cancelled.canceller().cancel();
    let end = cancelled.last().expect("an end");
    assert!(matches!(end, Event::Done(done) if done.reason == FinishReason::Cancelled));
    assert_eq!(run(&engine, &[1, 2], &greedy(3)).ids().len(), 3);
}

#[test]
fn a_generation_outlives_its_handles() {
    let _turn = device();
    let engine = engine("llama-f32");
    let generation = engine.submit(engine.request(vec![1], &greedy(5)).expect("valid")).expect("it runs");
    drop(engine);
    assert_eq!(generation.count(), 6);
}

#[test]
fn memory_is_free_again_when_the_engine_is_gone() {
    let _turn = device();
    let before = mlx_core::array::active_memory().expect("a figure");
    let engine = engine("llama-f32");
    run(&engine, &[1; 200], &greedy(20));
    assert!(mlx_core::array::active_memory().expect("a figure") > before);
    drop(engine);
    assert_eq!(mlx_core::array::active_memory().expect("a figure"), before);
}
