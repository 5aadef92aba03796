//! One model on several machines gives the same answers as on one, when idle and under load. The workers are threads in this process, but
//! connect over TCP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::weights::FloatPolicy;
use mlx_tests::pictures;
use mlx_tests::proxy::Proxy;
use mlx_tests::workers::{ThreadWorker, with_layers, workers};
use mlx_tests::{Dice, collect, cpu, greedy, keeps_bits, run};

use crate::convert;
use crate::exactness::{assert_equal, request, run_under_load, start};
use crate::speculation::{Texts, lying};

/// Families with different layers and states, and the number of layers of the copy.
const MODELS: [(&str, usize); 8] = [
    ("llama-f32", 5),
    ("llama-q4-f16", 4),
    ("qwen3_moe-f32", 4),
    ("gpt_oss-f32", 4),
    ("qwen3_5-f32", 8),
    ("qwen3_5-q4-f32", 8),
    ("gemma3_text-f32", 7),
    ("deepseek_v2-f32", 3),
];

/// Returns options of an engine with these workers.
fn options(of: &[ThreadWorker]) -> EngineOptions {
    let addresses: Vec<SocketAddr> = of.iter().map(|worker| worker.address).collect();
    EngineOptions { workers: Some(workers(&addresses)), ..EngineOptions::default() }
}

fn several(folder: &Path, count: usize) -> Vec<ThreadWorker> {
    (0..count).map(|_| ThreadWorker::start(folder)).collect()
}

fn prompt(length: usize, salt: usize) -> Vec<u32> {
    (0..length).map(|place| ((place * 31 + salt * 17 + place * place) % 88 + 4) as u32).collect()
}

/// Returns two texts with a common prefix, and one that continues an answer.
fn conversation(engine: &Engine) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut options = greedy(24);
    options.logprobs = Some(2);
    let mut outcomes = Vec::new();
    let mut text = prompt(70, 1);
    for more in [0, 5, 40] {
        text.extend(prompt(more, 2));
        let outcome = run(engine, &text, &options);
        let bits = outcome.tokens.iter().map(|it| it.logprob.as_ref().map_or(0, |it| it.logprob.to_bits()));
        outcomes.push((outcome.ids(), bits.collect()));
        text.extend(outcome.ids());
    }
    outcomes
}

#[test]
fn several_machines_answer_as_one() {
    let _turn = cpu();
    let plain = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for (name, layers) in MODELS {
        compare(name, with_layers(name, layers).path(), layers, &plain);
    }
    for name in ["qwen3_moe-f32", "gpt_oss-f32"] {
        let source = with_layers(name, 4);
        compare(&format!("{name} in 4 bits"), &convert::in_four_bits(source.path()), 4, &plain);
    }
}

/// Compares an engine with workers to one without; both have these options.
fn compare(name: &str, folder: &Path, layers: usize, plain: &EngineOptions) {
    let alone = Engine::start(folder, plain, |_, _| {}).expect("the model loads");
    let expected = conversation(&alone);
    let cached = alone.stats().cached_tokens;
    drop(alone);
    for count in [1, (layers - 1).min(3)] {
        let there = several(folder, count);
        let options = EngineOptions { workers: options(&there).workers, ..plain.clone() };
        let engine = Engine::start(folder, &options, |_, _| {}).expect("all are there");
        assert_eq!(conversation(&engine), expected, "{name} with {count} workers");
        assert_eq!(engine.stats().cached_tokens, cached, "{name} with {count} workers");
    }
}

#[test]
fn quantized_weights_are_unpacked_on_all_machines_or_on_none() {
    let _turn = cpu();
    let dtype = Some(FloatPolicy::F32);
    let name = "llama-q4-f16";
    compare(name, with_layers(name, 4).path(), 4, &EngineOptions { dtype, ..EngineOptions::default() });
}

#[test]
fn a_text_that_outgrows_the_context_slides_on_all_machines() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let plain = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let there = several(folder.path(), 2);
    let answer = |options: &EngineOptions| {
        let engine = Engine::start(folder.path(), options, |_, _| {}).expect("the model loads");
        let request = RequestOptions { n_keep: Some(10), ignore_eos: true, ..greedy(200) };
        run(&engine, &prompt(30, 1), &request).ids()
    };
    let alone = answer(&plain);
    assert_eq!(alone.len(), 200);
    assert_eq!(answer(&EngineOptions { workers: options(&there).workers, ..plain.clone() }), alone);
}

#[test]
fn hidden_states_come_back_only_where_they_are_read() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let worker = ThreadWorker::start(folder.path());
    let proxy = Proxy::start(worker.address);
    let options = EngineOptions { workers: Some(workers([&proxy.address])), ..EngineOptions::default() };
    let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("it is there");
    let text = prompt(240, 1);
    let row = engine.spec().hidden_size * size_of::<f32>();
    let bytes_of = |ask: &dyn Fn()| {
        let before = proxy.passed();
        ask();
        let after = proxy.passed();
        [0, 1].map(|way| after[way] - before[way])
    };
    // Chunks have 64 rows. Only the last row of the prompt is read.
    let [sent, received] = bytes_of(&|| drop(run(&engine, &text, &greedy(1))));
    assert!(sent > 240 * row && received < 100 * row, "{sent} and {received} bytes, {row} a row");
    // Scoring reads all rows.
    let all = RequestOptions { prompt_logprobs: Some(0), ..greedy(1) };
    let [_, received] = bytes_of(&|| drop(run(&engine, &prompt(240, 2), &all)));
    assert!(received > 240 * row, "{received} bytes");
}

#[test]
fn few_bits_of_keys_and_values_are_those_of_one_machine() {
    let _turn = cpu();
    let name = "llama-f32";
    compare(
        name,
        with_layers(name, 5).path(),
        5,
        &EngineOptions { kv_bits: Some(8), ..EngineOptions::default() },
    );
}

#[test]
fn exact_requests_have_the_same_bits_alone_and_under_load() {
    let _turn = cpu();
    for (name, layers) in [("llama-f32", 5), ("qwen3_5-q4-f32", 8), ("gpt_oss-f32", 4)] {
        let folder = with_layers(name, layers);
        let there = several(folder.path(), 2);
        let engine = start(folder.path(), &options(&there));
        if !keeps_bits(&engine) {
            continue;
        }
        let mut dice = Dice::new(layers as u64);
        let requests: Vec<_> = (0..20).map(|_| request(&mut dice, &engine)).collect();
        let alone: Vec<_> = requests.iter().map(|it| run(&engine, &it.prompt, &it.options)).collect();
        let loaded = run_under_load(&engine, &requests);
        for (place, (alone, loaded)) in alone.iter().zip(&loaded).enumerate() {
            assert_equal(alone, loaded, &format!("{name}, request {place}"));
        }
    }
}

#[test]
fn drafts_are_verified_on_all_machines() {
    let _turn = cpu();
    for (name, layers) in [("llama-f32", 4), ("qwen3_5-f32", 8), ("gemma3_text-f32", 6)] {
        let folder = with_layers(name, layers);
        let there = several(folder.path(), 1);
        let plain = Engine::start(folder.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
        let text = prompt(60, 3);
        let one = run(&plain, &text, &greedy(40));
        let texts: Texts = Arc::new(Mutex::new(vec![[text.clone(), one.ids()].concat()]));
        let options = lying(&texts, options(&there));
        let engine = Engine::start(folder.path(), &options, |_, _| {}).expect("all are there");
        for other in [run(&engine, &text, &greedy(40)), run(&engine, &text, &greedy(40))] {
            assert_eq!(one.ids(), other.ids(), "{name}");
        }
        assert!(engine.stats().drafted_tokens > 0, "{name} drafted nothing");
    }
}

#[test]
fn several_machines_see_as_one() {
    let _turn = cpu();
    let exact = EngineOptions { exact: true, ..EngineOptions::default() };
    // Rank 0 holds the layers that add further picture features: in this Qwen3-VL, two of three.
    let models = [("mistral3-f32", 2), ("qwen3_5-f32", 2), ("qwen3_vl-f32", 1), (pictures::TWO_WAY, 2)];
    for (model, count) in models {
        let alone = pictures::start(model, &exact);
        let (prompts, whole) = (pictures::many(&alone), alone.spec().weight_bytes);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| pictures::bits(&pictures::answer(&alone, prompt, 12))).collect();
        drop(alone);
        let there = several(&pictures::folder(model), count);
        let engine =
            pictures::start(model, &EngineOptions { workers: options(&there).workers, ..exact.clone() });
        assert!(engine.spec().weight_bytes < whole);
        for (number, (prompt, expected)) in prompts.iter().zip(&expected).enumerate() {
            assert_eq!(
                &pictures::bits(&pictures::answer(&engine, prompt, 12)),
                expected,
                "{model}, {number} pictures"
            );
        }
        let running: Vec<_> = prompts.iter().map(|prompt| pictures::submit(&engine, prompt, 12)).collect();
        for (number, (generation, expected)) in running.into_iter().zip(&expected).enumerate() {
            assert_eq!(
                &pictures::bits(&collect(generation)),
                expected,
                "{model}, {number} pictures in company"
            );
        }
        assert!(engine.stats().prefix_hits > 0, "{model}");
    }
    let folder = pictures::folder("qwen3_vl-f32");
    let there = several(&folder, 2);
    let refused = Engine::start(&folder, &options(&there), |_, _| {})
        .map(drop)
        .expect_err("one layer is left")
        .to_string();
    assert!(refused.contains("the 3 layers of this model cannot be divided"), "{refused}");
}

#[test]
fn every_machine_has_its_layers_and_no_more() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 6);
    let there = several(folder.path(), 2);
    let whole = Engine::start(folder.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let engine = Engine::start(folder.path(), &options(&there), |_, _| {}).expect("all are there");
    let (part, all) = (engine.spec().weight_bytes, whole.spec().weight_bytes);
    assert!(part < all / 2, "{part} of {all} bytes are on rank 0");
    assert_eq!(engine.spec().num_layers, 6);
    assert_ne!(engine.spec().fingerprint, whole.spec().fingerprint);
    // The machine with the least memory limits what the engine promises.
    let budget = whole.stats().budget_bytes;
    let small =
        ThreadWorker::start_with(folder.path(), mlx_core::distributed::Key::default(), Some(64 << 20));
    let both = [ThreadWorker::start(folder.path()), small];
    let engine = Engine::start(folder.path(), &options(&both), |_, _| {}).expect("all are there");
    let given = engine.stats().budget_bytes;
    assert!(given < 64 << 20 && given < budget, "{given} of {budget} bytes");
    let generation =
        engine.submit(engine.request(prompt(20, 1), &greedy(4)).expect("it fits")).expect("room");
    assert_eq!(collect(generation).ids().len(), 4);
}
