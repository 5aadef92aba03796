//! Log probabilities of given texts: one prefill gives the same numbers as decoding step by step.

use mlx_core::array::Rows;
use mlx_core::cache::Variant;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Task};
use mlx_core::model::{self, Batch};
use mlx_core::sampling::{Scratch, score};
use mlx_core::weights::WeightPolicy;
use mlx_tests::{device, engine, golden, greedy, model_copy, run};

fn scored(top: usize) -> RequestOptions {
    RequestOptions { task: Task::Score, prompt_logprobs: Some(top), ..RequestOptions::default() }
}

#[test]
fn a_scored_text_has_the_log_probabilities_of_its_generation() {
    let _turn = device();
    for name in ["llama-f32", "llama-spm-f32"] {
        let engine = engine(name);
        for case in golden::cases(name).cases {
            let text = [&case.prompt_ids[..], &case.tokens].concat();
            let outcome = run(&engine, &text, &scored(5));
            let tokens = &outcome.prompt_tokens;
            assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), text);
            assert_eq!((tokens[0].logprob.is_none(), outcome.tokens.len()), (true, 0));
            for (token, expected) in tokens[case.prompt_ids.len()..].iter().zip(&case.logprobs) {
                let reported = token.logprob.as_ref().expect("asked for");
                assert!((reported.logprob - expected).abs() < 2e-3, "{name}");
                assert_eq!(
                    (reported.top.len(), reported.top[0].0),
                    (5, token.id),
                    "greedy tokens are the likeliest"
                );
            }
            let streamed: String = tokens.iter().map(|token| token.text.as_str()).collect();
            assert_eq!(streamed, engine.folder().tokenizer.decode(&text, false));
        }
    }
}

/// Scores do not depend on the number of chunks of a prompt.
#[test]
fn scores_do_not_depend_on_chunks() {
    let _turn = device();
    let copy = model_copy("llama-rope3-f32");
    let config = copy.path().join("config.json");
    let mut value: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("json");
    value["max_position_embeddings"] = 2048.into();
    std::fs::write(&config, value.to_string()).expect("it can be written");
    let text: Vec<u32> = (0..1300u32).map(|index| 5 + index * index % 311).collect();

    let engine = Engine::start(copy.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let chunked = run(&engine, &text, &scored(0)).prompt_tokens;
    drop(engine);
    let policy = WeightPolicy::for_device(false).expect("a device");
    let model = model::load(copy.path(), policy, &mut |_, _| {}).expect("it loads");
    let hidden = model
        .forward(Batch::prompt(&text, 0), &mut [&mut model.new_state(Variant::default())])
        .expect("the pass runs");
    let rows = Rows::new(&model.logits(&hidden).expect("the head runs")).expect("rows");
    let rows = rows.values().expect("values").chunks(model.spec().vocab_size);
    let mut scratch = Scratch::default();
    assert_eq!(chunked.len(), text.len());
    for (token, row) in chunked[1..].iter().zip(rows) {
        let full = score(row, token.id, 0, &mut scratch).expect("a row").logprob;
        let reported = token.logprob.as_ref().expect("asked for").logprob;
        assert!((reported - full).abs() < 2e-3, "{reported} and {full}");
    }
}

#[test]
fn scoring_a_prompt_does_not_change_its_answer() {
    let _turn = device();
    let engine = engine("llama-f32");
    let prompt = &golden::cases("llama-f32").cases[0].prompt_ids;
    let plain = run(&engine, prompt, &greedy(12));
    let both = run(&engine, prompt, &RequestOptions { prompt_logprobs: Some(0), ..greedy(12) });
    assert_eq!((both.ids(), both.prompt_tokens.len()), (plain.ids(), prompt.len()));
    assert!(plain.prompt_tokens.is_empty());
}

#[test]
fn texts_of_one_token_and_of_the_full_context_can_be_scored() {
    let _turn = device();
    let engine = engine("llama-f32");
    let full = vec![7; engine.spec().context_length];
    assert_eq!(run(&engine, &full, &scored(0)).prompt_tokens.len(), full.len());
    assert_eq!(run(&engine, &[7], &scored(0)).prompt_tokens.len(), 1);
    assert!(engine.request([full, vec![7]].concat(), &scored(0)).is_err());
}
