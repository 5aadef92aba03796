//! A request that continues after the tokens of a lost run ends like an uninterrupted one.

use chat_format::{ConstraintSpec, Grammar, Scope};
use mlx_core::Error;
use mlx_core::engine::{DraftCounts, Engine, EngineOptions, RequestOptions, Resume, Speculate, Usage};
use mlx_core::sampling::SamplingOptions;
use mlx_tests::requests::{assert_equal, request};
use mlx_tests::scale::cases;
use mlx_tests::{Dice, Outcome, at_rest, collect, cpu, device, keeps_bits, model_folder, run};
use serde_json::json;

use crate::exactness::start;

/// Attention, a mixer with a state of constant size, a window, a tokenizer with byte tokens, and a head that drafts.
const MODELS: [&str; 5] =
    ["llama-f32", "falcon_h1-f32", "gemma3_text-f32", "llama-spm-f32", "qwen3_5-mtp-f32"];

/// Returns the events of a run after its first `cut` tokens.
fn after(whole: &Outcome, cut: usize) -> Outcome {
    let tokens = whole.tokens[cut..].to_vec();
    let text =
        tokens.iter().map(|token| token.delta.as_str()).chain([whole.finished.delta.as_str()]).collect();
    let prompt_tokens = if cut == 0 { whole.prompt_tokens.clone() } else { Vec::new() };
    Outcome { tokens, text, prompt_tokens, ..whole.clone() }
}

/// Runs a request that continues after the first `cut` tokens of a lost run.
fn resume(engine: &Engine, prompt: &[u32], options: &RequestOptions, lost: &Outcome, cut: usize) -> Outcome {
    let request = engine.request(prompt.to_vec(), options).expect("the request is valid");
    let resume = Resume { tokens: lost.ids()[..cut].to_vec(), usage: lost.finished.usage };
    let request = engine.resumed(request, resume).expect("the tokens are valid");
    collect(engine.submit(request).expect("the engine runs"))
}

/// Returns the usage without drafts, whose number depends on other requests.
fn counts(outcome: &Outcome) -> Usage {
    Usage { drafts: DraftCounts::default(), ..outcome.finished.usage }
}

#[test]
fn an_exact_request_continues_with_the_same_bits() {
    let _turn = cpu();
    for name in MODELS {
        for force_drafts in [false, true] {
            let engine =
                start(&model_folder(name), &EngineOptions { force_drafts, ..EngineOptions::default() });
            if !keeps_bits(&engine) {
                continue;
            }
            let mut dice = Dice::new(11);
            for case in 0..cases(4) {
                let request = request(&mut dice, &engine);
                let whole = run(&engine, &request.prompt, &request.options);
                for cut in [dice.below(whole.tokens.len() + 1), whole.tokens.len()] {
                    let resumed = resume(&engine, &request.prompt, &request.options, &whole, cut);
                    let about = format!("{name}, request {case}, after {cut} tokens");
                    assert_equal(&after(&whole, cut), &resumed, &about);
                    if cut > 0 {
                        assert_eq!(counts(&resumed), counts(&whole), "{about}");
                        let (drafts, lost) = (resumed.finished.usage.drafts, whole.finished.usage.drafts);
                        assert!(drafts.drafted >= lost.drafted, "{about}: the drafts are continued");
                    }
                    assert_eq!(resumed.finished.exactness, whole.finished.exactness, "{about}");
                }
            }
        }
    }
}

/// Runs a request, and resumes it after each of its tokens.
fn resume_everywhere(engine: &Engine, prompt: &[u32], options: &RequestOptions) -> Outcome {
    let whole = run(engine, prompt, options);
    for cut in 0..=whole.tokens.len() {
        let resumed = resume(engine, prompt, options, &whole, cut);
        assert_equal(&after(&whole, cut), &resumed, &format!("{options:?}, after {cut} tokens"));
    }
    whole
}

#[test]
fn grammars_stop_strings_and_penalties_continue_at_every_token() {
    let _turn = cpu();
    let engine = start(&model_folder("llama-f32"), &EngineOptions::default());
    if !keeps_bits(&engine) {
        return;
    }
    let sampling = |seed| SamplingOptions {
        temperature: Some(1.0),
        repetition_penalty: Some(1.2),
        dry_multiplier: Some(0.8),
        seed: Some(seed),
        ..SamplingOptions::default()
    };
    let base = |seed, tokens| RequestOptions {
        sampling: sampling(seed),
        max_tokens: Some(tokens),
        logprobs: Some(3),
        ..RequestOptions::default()
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
        "required": ["a", "b"], "additionalProperties": false});
    let grammar = Grammar::JsonSchema(schema);
    let constraint = Some(ConstraintSpec { grammar, scope: Scope::Answer });
    resume_everywhere(&engine, &[5, 6, 7], &RequestOptions { constraint, ..base(3, 40) });
    // The stop string ends within a token and begins in an earlier one.
    let free = RequestOptions { ignore_eos: true, ..base(4, 40) };
    let text = run(&engine, &[5, 6, 7], &free).text;
    let stop: String = text.chars().skip(12).take(5).collect();
    let stopped = resume_everywhere(&engine, &[5, 6, 7], &RequestOptions { stop: vec![stop], ..free });
    assert_eq!(stopped.finished.reason.as_str(), "stop");
    let prompt_logprobs = Some(2);
    let scored = RequestOptions { prompt_logprobs, ..base(5, 8) };
    resume_everywhere(&engine, &[5, 6, 7, 8, 9], &scored);
}

#[test]
fn a_resumed_request_counts_its_tokens_once_and_needs_memory_for_all() {
    let _turn = device();
    let options =
        EngineOptions { speculate: Speculate::Off, prefix_cache: Some(0), ..EngineOptions::default() };
    let engine = Engine::start(&model_folder("llama-f32"), &options, |_, _| {}).expect("it loads");
    let options = RequestOptions { ignore_eos: true, max_tokens: Some(20), ..RequestOptions::default() };
    let whole = run(&engine, &[4, 5, 6], &options);
    let before = at_rest(&engine);
    let resumed = resume(&engine, &[4, 5, 6], &options, &whole, 15);
    let after = at_rest(&engine);
    assert_eq!((resumed.tokens.len(), resumed.finished.usage.completion_tokens), (5, 20));
    assert_eq!(after.completion_tokens - before.completion_tokens, 20);
    assert_eq!((after.finished - before.finished, after.reserved_bytes), (1, before.reserved_bytes));
    // All tokens are known, and only the end was lost.
    let ended = resume(&engine, &[4, 5, 6], &options, &whole, 20);
    assert_eq!((ended.tokens.len(), &ended.finished.reason), (0, &whole.finished.reason));
}

#[test]
fn tokens_that_the_request_cannot_have_drawn_are_rejected() {
    let _turn = device();
    let engine = mlx_tests::engine("llama-f32");
    let options = RequestOptions { max_tokens: Some(2), ..RequestOptions::default() };
    let rejected = |tokens: Vec<u32>| {
        let request = engine.request(vec![4], &options).expect("it is valid");
        match engine.resumed(request, Resume { tokens, ..Resume::default() }) {
            Err(Error::Request { field, message }) => format!("{field}: {message}"),
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        }
    };
    let width = engine.spec().vocab_size;
    assert_eq!(rejected(vec![1, 2, 3]), "resume: has 3 tokens; the request generates at most 2");
    let beyond = format!("resume: holds token id {width}; the model's ids end at {}", width - 1);
    assert_eq!(rejected(vec![1, width as u32]), beyond);
    assert_eq!(rejected(vec![1, 2]), "");
}
