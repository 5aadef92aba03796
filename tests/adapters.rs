//! Adapters: outputs equal mlx-lm's, with the adapter in memory or fused. The model without an adapter keeps its bits, and adapters
//! that do not fit are rejected with the reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlx_core::array::{active_memory, drop_freed_memory};
use mlx_core::cache::DiskOptions;
use mlx_core::convert::ConvertOptions;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Task};
use mlx_core::inspect::inspect;
use mlx_core::weights::FloatPolicy;
use mlx_tests::golden::Case;
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{Outcome, collect, device, golden_folder, greedy, model_folder, run};
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::convert;

/// The tolerance of log probabilities to the reference's.
const TOLERANCE: f32 = 2e-3;

/// The reference's results for a model with an adapter.
#[derive(Deserialize)]
struct Expected {
    base: String,
    convert: Value,
    cases: Vec<Case>,
    ids: Vec<u32>,
    scores_half: Option<Vec<f32>>,
    fused: Value,
}

fn expected() -> BTreeMap<String, Expected> {
    let text = fs::read_to_string(golden_folder().join("expected/adapters.json")).expect("a fixture");
    serde_json::from_str(&text).expect("the fixture has this form")
}

fn adapter(name: &str) -> PathBuf {
    golden_folder().join("adapters").join(name)
}

/// Returns the folder of an adapter's base model, and the temporary folder that holds it, if any.
fn base(expected: &Expected) -> (PathBuf, Option<TempDir>) {
    if expected.convert.is_null() {
        return (model_folder(&expected.base), None);
    }
    let source = convert::made_up(&convert::recorded()["sources"][&expected.base]);
    let target = source.path().join("base");
    convert::run(source.path(), &target, &convert::options(&expected.convert)).expect("it converts");
    (target, Some(source))
}

fn start(base: &Path, adapters: &[PathBuf], options: EngineOptions) -> mlx_core::Result<Engine> {
    Engine::start(base, &EngineOptions { adapters: adapters.to_vec(), ..options }, |_, _| {})
}

fn with_scores(tokens: usize) -> RequestOptions {
    RequestOptions { logprobs: Some(0), ..greedy(tokens) }
}

fn logprobs(outcome: &Outcome) -> Vec<f32> {
    outcome.tokens.iter().map(|token| token.logprob.as_ref().expect("it was asked for").logprob).collect()
}

#[test]
fn a_model_with_an_adapter_gives_mlx_lms_tokens_and_scores() {
    let _turn = device();
    for (name, expected) in expected() {
        let (folder, _kept) = base(&expected);
        for keep_quantized in [false, true] {
            let options =
                EngineOptions { dtype: Some(FloatPolicy::F32), keep_quantized, ..EngineOptions::default() };
            let engine =
                start(&folder, &[adapter(&name)], options).unwrap_or_else(|error| panic!("{name}: {error}"));
            let adapted = engine.with_adapter(0).expect("there is one");
            for case in &expected.cases {
                let outcome = run(&adapted, &case.prompt_ids, &with_scores(case.tokens.len()));
                assert_eq!(outcome.ids(), case.tokens, "{name}");
                for (found, expected) in logprobs(&outcome).iter().zip(&case.logprobs) {
                    assert!((found - expected).abs() < TOLERANCE, "{name}: {found}, not {expected}");
                }
                let base = run(&engine, &case.prompt_ids, &greedy(case.tokens.len()));
                assert_ne!(base.ids(), case.tokens, "{name}: the adapter changes nothing");
            }
        }
    }
}

/// With weights in half precision, adapters are computed in the type that mlx-lm uses.
#[test]
fn halves_are_cast_where_mlx_lm_casts_them() {
    let _turn = device();
    let mut count = 0;
    for (name, expected) in expected() {
        let Some(scores) = &expected.scores_half else { continue };
        let options = EngineOptions { dtype: Some(FloatPolicy::Checkpoint), ..EngineOptions::default() };
        let engine = start(&base(&expected).0, &[adapter(&name)], options).expect("it loads");
        let task = RequestOptions { task: Task::Score, ..RequestOptions::default() };
        let found = run(&engine.with_adapter(0).expect("there is one"), &expected.ids, &task);
        let found =
            found.prompt_tokens[1..].iter().map(|token| token.logprob.as_ref().expect("a score").logprob);
        let worst = found.zip(scores).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
        assert!(worst < 0.15, "{name}: {worst}");
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn a_fused_model_equals_mlx_lms_byte_for_byte() {
    let _turn = device();
    for (name, expected) in expected() {
        let (folder, _kept) = base(&expected);
        let target = tempfile::tempdir().expect("a temporary folder");
        let options = ConvertOptions { adapter: Some(adapter(&name)), ..convert::options(&json!({})) };
        convert::run(&folder, target.path(), &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let about = |(name, (dtype, shape, bytes)): (String, Tensor)| {
            (name, json!([dtype, shape, convert::crc32(&bytes)]))
        };
        let found: BTreeMap<String, Value> = convert::read(target.path()).into_iter().map(about).collect();
        let tensors: BTreeMap<String, Value> =
            serde_json::from_value(expected.fused["tensors"].clone()).expect("tensors");
        assert!(found.keys().eq(tensors.keys()), "{name}: {:?}", found.keys());
        for (tensor, value) in &tensors {
            assert_eq!(&found[tensor], value, "{name}: {tensor}");
        }
        let config = fs::read(target.path().join("config.json")).expect("a config");
        let config: Value = serde_json::from_slice(&config).expect("json");
        let settings = |section: &Value| ["group_size", "bits", "mode"].map(|key| section[key].clone());
        assert_eq!(settings(&config["quantization"]), settings(&expected.fused["quantization"]), "{name}");
        assert_eq!(config["quantization_config"], config["quantization"], "{name}");
    }
}

/// An exact request has the same bits on an engine without adapters, alone, and among requests of the model and other adapters.
#[test]
fn a_model_and_its_adapters_do_not_mix() {
    let _turn = device();
    let prompt = |salt: u32| -> Vec<u32> { (0..100).map(|place| (place * 7 + salt) % 80 + 5).collect() };
    let options = RequestOptions { exact: Some(true), ..with_scores(16) };
    for (model, names) in
        [("llama-f32", ["lora", "dora", "full"].as_slice()), ("qwen3_moe-f32", &["lora-moe"])]
    {
        let adapters: Vec<PathBuf> = names.iter().map(|name| adapter(name)).collect();
        let plain = start(&model_folder(model), &[], EngineOptions::default()).expect("it loads");
        let handles = |engine: &Engine| -> Vec<Engine> {
            let adapted = (0..names.len()).map(|place| engine.with_adapter(place).expect("there is one"));
            [engine.clone()].into_iter().chain(adapted).collect()
        };
        let alone: Vec<Vec<Outcome>> = (0..=names.len())
            .map(|place| {
                let engine =
                    start(&model_folder(model), &adapters, EngineOptions::default()).expect("it loads");
                [1, 1, 2].map(|salt| run(&handles(&engine)[place], &prompt(salt), &options)).to_vec()
            })
            .collect();
        for (outcome, salt) in alone[0].iter().zip([1, 1, 2]) {
            assert_eq!(
                outcome.tokens,
                run(&plain, &prompt(salt), &options).tokens,
                "{model}: the base has changed"
            );
        }
        let engine = start(&model_folder(model), &adapters, EngineOptions::default()).expect("it loads");
        let handles = handles(&engine);
        let requests =
            [1, 2, 1].into_iter().flat_map(|salt| handles.iter().map(move |handle| (salt, handle)));
        let requests = requests.map(|(salt, handle)| handle.request(prompt(salt), &options).expect("valid"));
        let generations = engine.submit_all(requests.collect()).expect("room in the queue");
        let together: Vec<Outcome> = generations.into_iter().map(collect).collect();
        for (index, outcome) in together.iter().enumerate() {
            let (round, place) = (index / handles.len(), index % handles.len());
            let expected = &alone[place][if round == 1 { 2 } else { 0 }];
            assert_eq!(outcome.tokens, expected.tokens, "{model}: request {index}");
            assert_eq!(outcome.finished.exactness, expected.finished.exactness);
        }
        // The second of two equal prompts reuses what the first computed, but never a prefix of another adapter.
        for outcomes in &alone {
            let cached: Vec<usize> = outcomes.iter().map(|it| it.finished.usage.cached_tokens).collect();
            assert_eq!(cached, [0, 64, 0], "{model}");
        }
        for handle in &handles {
            let again = run(handle, &prompt(3), &options);
            assert_eq!(again.finished.usage.cached_tokens, 0, "{model}: a prefix of another adapter");
        }
    }
}

#[test]
fn prefixes_on_disk_belong_to_an_adapter() {
    let _turn = device();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompt: Vec<u32> = (0..150).map(|place| (place * 7) % 80 + 5).collect();
    let options = RequestOptions { exact: Some(true), ..with_scores(8) };
    let ask = |names: &[&str], place: Option<usize>| {
        let adapters: Vec<PathBuf> = names.iter().map(|name| adapter(name)).collect();
        let disk = Some(DiskOptions::new(folder.path().to_owned()));
        let options_of_engine = EngineOptions { prompt_cache: disk, ..EngineOptions::default() };
        let engine = start(&model_folder("llama-f32"), &adapters, options_of_engine).expect("it loads");
        let handle = place.map_or(engine.clone(), |place| engine.with_adapter(place).expect("there is one"));
        let outcome = run(&handle, &prompt, &options);
        (outcome.finished.usage.cached_tokens, outcome.tokens)
    };
    let (cached, base) = ask(&[], None);
    assert_eq!(cached, 0);
    let (cached, lora) = ask(&["lora"], Some(0));
    assert_eq!(cached, 0, "the prefix of the base model must not be reused");
    let (cached, dora) = ask(&["lora", "dora"], Some(1));
    assert_eq!(cached, 0, "the prefix of another adapter must not be reused");
    // An adapter is identified by its contents, not its path.
    assert_eq!(ask(&["dora", "lora"], Some(1)), (128, lora));
    assert_eq!(ask(&["dora"], Some(0)), (128, dora));
    assert_eq!(ask(&["full"], None), (128, base));
}

#[test]
fn adapters_share_the_weights_of_their_model() {
    let _turn = device();
    let held = |adapters: &[PathBuf]| {
        // A tensor may reuse a larger buffer that an earlier test has freed.
        drop_freed_memory().expect("memory");
        let before = active_memory().expect("a figure") as u64;
        let engine = start(&model_folder("llama-f32"), adapters, EngineOptions::default()).expect("it loads");
        (active_memory().expect("a figure") as u64 - before, engine)
    };
    let (alone, engine) = held(&[]);
    let weights = engine.spec().weight_bytes;
    drop(engine);
    let adapters = vec![adapter("lora-last"); 6];
    let (shared, engine) = held(&adapters);
    let each = engine.with_adapter(5).expect("there is one").spec().weight_bytes - weights;
    assert!(each < weights / 8, "{each} of {weights}");
    // It may also reuse a buffer freed during this load; such buffers are less than twice as large as their contents.
    assert!(shared <= alone + 2 * 6 * each, "{shared}, and {alone} alone");
    drop(engine);
    // The sizes that `inspect` reports before loading are the actual ones, except for norms and padding between shards.
    let options = EngineOptions { adapters, ..EngineOptions::default() };
    let found = inspect(&model_folder("llama-f32"), &options).expect("it can be inspected");
    let summary = &found.adapters[0];
    assert_eq!((summary.config.rank, summary.modules), (2, 2));
    let beside = found.spec.weight_bytes - weights;
    assert!(beside >= 6 * summary.parameters * 4 && beside <= 6 * each, "{beside}, and {each} each");
}

/// Returns a copy of an adapter that a test may change.
fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for file in ["adapter_config.json", "adapters.safetensors"] {
        fs::copy(adapter(name).join(file), copy.path().join(file)).expect("it can be copied");
    }
    copy
}

fn change_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("adapter_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("json");
    change(&mut config);
    fs::write(path, config.to_string()).expect("it can be written");
}

fn change_tensors(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let path = folder.join("adapters.safetensors");
    let mut all = tensors::read(&path);
    change(&mut all);
    tensors::write(&path, &all);
}

/// Returns the same adapter in PEFT's format.
fn as_peft(name: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = fs::read(adapter(name).join("adapter_config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("json");
    let lora = &config["lora_parameters"];
    let (rank, scale) = (lora["rank"].as_f64().expect("a number"), lora["scale"].as_f64().expect("a number"));
    let peft = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": lora["rank"], "lora_alpha": rank * scale, "bias": "none",
        "use_dora": config["fine_tune_type"] == "dora", "use_rslora": false, "target_modules": ["q_proj"],
        "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {}, "fan_in_fan_out": false,
        "base_model_name_or_path": "llama", "init_lora_weights": true, "inference_mode": true,
    });
    fs::write(folder.path().join("adapter_config.json"), peft.to_string()).expect("it can be written");
    let ends =
        [(".lora_a", ".lora_A.weight"), (".lora_b", ".lora_B.weight"), (".m", ".lora_magnitude_vector")];
    let renamed =
        tensors::read(&adapter(name).join("adapters.safetensors")).into_iter().map(|(name, tensor)| {
            let (end, peft) = ends.iter().find(|(end, _)| name.ends_with(end)).expect("a known end");
            let module = name.strip_suffix(end).expect("it has that end");
            (format!("base_model.model.{module}{peft}"), transposed(tensor))
        });
    tensors::write(&folder.path().join("adapter_model.safetensors"), &renamed.collect());
    folder
}

fn transposed((dtype, shape, bytes): Tensor) -> Tensor {
    let [rows, columns] = shape[..] else { return (dtype, shape, bytes) };
    let size = dtype.bitsize() / 8;
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| (row * columns + column) * size));
    let bytes = places.flat_map(|at| bytes[at..at + size].to_vec()).collect();
    (dtype, vec![columns, rows], bytes)
}

#[test]
fn pefts_layout_means_the_same() {
    let _turn = device();
    for name in ["lora", "dora"] {
        let expected = expected().remove(name).expect("a case");
        let folder = as_peft(name);
        let engine =
            start(&model_folder(&expected.base), &[folder.path().to_owned()], EngineOptions::default());
        let adapted = engine.expect("it loads").with_adapter(0).expect("there is one");
        for case in &expected.cases {
            let outcome = run(&adapted, &case.prompt_ids, &greedy(case.tokens.len()));
            assert_eq!(outcome.ids(), case.tokens, "{name}");
        }
        // Fusing rejects it too.
        let target = tempfile::tempdir().expect("a temporary folder");
        let options = ConvertOptions {
            adapter: Some(folder.path().to_owned()),
            ..convert::options(&json!({"dtype": "bfloat16"}))
        };
        convert::run(&model_folder(&expected.base), target.path(), &options).expect("it converts");
    }
}

/// Changes a copy of an adapter and expects that llama-f32 rejects it with these words, loaded and fused.
fn expect_refused(name: &str, change: impl FnOnce(&Path), words: &str) {
    let (folder, target) = (copy(name), tempfile::tempdir().expect("a temporary folder"));
    change(folder.path());
    let (model, adapter) = (model_folder("llama-f32"), folder.path().to_owned());
    let loaded = start(&model, std::slice::from_ref(&adapter), EngineOptions::default()).map(drop);
    let options = ConvertOptions { adapter: Some(adapter), ..convert::options(&json!({})) };
    let fused = convert::run(&model, &target.path().join("out"), &options).map(drop);
    for outcome in [loaded, fused] {
        let error = outcome.err().unwrap_or_else(|| panic!("{name} is not refused: {words}")).to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn claims_of_the_config_that_do_not_fit_are_refused_by_name() {
    let _turn = device();
    let expect = |name, change: fn(&mut Value), words: &str| {
        expect_refused(name, |folder| change_config(folder, change), words);
    };
    expect("lora-last", |it| it["fine_tune_type"] = json!("ia3"), "fine_tune_type is \"ia3\"");
    expect("lora-last", |it| it["fine_tune_type"] = json!("dora"), "without magnitudes");
    expect("lora-last", |it| it["fine_tune_type"] = json!("full"), "no such tensor");
    expect("dora", |it| it["fine_tune_type"] = json!("lora"), "with magnitudes");
    expect("lora-last", |it| it["lora_parameters"]["rank"] = json!(3), "rank 3 in adapter_config.json");
    let keys = |it: &mut Value| it["lora_parameters"]["keys"] = json!(["self_attn.q_proj"]);
    expect("lora-last", keys, "v_proj.lora_a belongs to a module that lora_parameters.keys");
    expect("lora", |it| it["num_layers"] = json!(1), "the last 1 layers were trained");
    // Adapters of models with other sizes.
    expect("lora-q4", |_| {}, "a projection of this model from");
    expect("lora-moe", |_| {}, "this model has 2 layers");
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let _turn = device();
    let q_proj = "model.layers.1.self_attn.q_proj";
    let [a, b, c] = ["a", "b", "c"].map(|part| format!("{q_proj}.lora_{part}"));
    let remove = |file: &str| {
        let file = file.to_owned();
        move |folder: &Path| fs::remove_file(folder.join(file)).expect("it is there")
    };
    expect_refused("lora-last", remove("adapter_config.json"), "has no adapter_config.json");
    expect_refused("lora-last", remove("adapters.safetensors"), "adapters.safetensors");
    let expect = |change: &dyn Fn(&mut BTreeMap<String, Tensor>), words: &str| {
        expect_refused("lora-last", |folder| change_tensors(folder, |all| change(all)), words);
    };
    let rename = |all: &mut BTreeMap<String, Tensor>, to: &str| {
        for name in [&a, &b] {
            let taken = all.remove(name).expect("it is there");
            all.insert(name.replace(q_proj, to), taken);
        }
    };
    expect(&|all| drop(all.remove(&b)), "without the other factor");
    expect(&|all| rename(all, "model.layers.2.self_attn.q_proj"), "this model has 2 layers");
    expect(&|all| drop(all.insert(c.clone(), (Dtype::F32, vec![1], vec![0; 4]))), "lora_c is not a factor");
    let as_bytes = |all: &mut BTreeMap<String, Tensor>| {
        let tensor = all.get_mut(&a).expect("it is there");
        *tensor = (Dtype::U8, tensor.1.clone(), vec![0; tensor.1.iter().product()]);
    };
    expect(&as_bytes, "type U8");
    // A module that this family does not have, in a layer that exists.
    let elsewhere = |folder: &Path| {
        change_config(folder, |it| {
            it["lora_parameters"]["keys"] = json!(["self_attn.v_proj", "mlp.router"]);
        });
        change_tensors(folder, |all| rename(all, "model.layers.1.mlp.router"));
    };
    expect_refused("lora-last", elsewhere, "cannot be adapted: model.layers.1.mlp.router.lora_a");
}
