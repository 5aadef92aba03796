//! Quantized weights give the reference's numbers, dequantized or packed, and use the reported memory.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::config::Fields;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::inspect::inspect;
use mlx_core::model::{self, Model};
use mlx_core::quantization::{Mode, QuantScheme, QuantizationConfig, QuantizedMatrix};
use mlx_core::weights::{FloatPolicy, WeightPolicy, Weights};
use mlx_rs::Array;
use mlx_tests::golden::{self, MODELS, QUANTIZED, worst_difference};
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{device, greedy, model_folder, run};
use safetensors::Dtype as FileDtype;
use serde_json::json;

use crate::families::{logits_in_passes, tolerance};
use crate::family_configs::{Tensors, rewritten};

const KEPT: WeightPolicy =
    WeightPolicy { floats: FloatPolicy::F32, keep_packed: true, backend: Backend::CPU };
const UNPACKED: WeightPolicy =
    WeightPolicy { floats: FloatPolicy::F32, keep_packed: false, backend: Backend::CPU };
/// The default policy on a CPU.
const MIXED: WeightPolicy =
    WeightPolicy { floats: FloatPolicy::Mixed, keep_packed: true, backend: Backend::CPU };
const AS_IN_FILES: WeightPolicy =
    WeightPolicy { floats: FloatPolicy::Checkpoint, keep_packed: true, backend: Backend::CPU };

fn load(name: &str, policy: WeightPolicy) -> Box<dyn Model> {
    model::load(&model_folder(name), policy, &mut |_, _| {}).expect("the fixture loads")
}

fn keeping() -> EngineOptions {
    EngineOptions { keep_quantized: true, ..EngineOptions::default() }
}

#[test]
fn quantized_weights_give_the_logits_of_the_reference() {
    let _turn = device();
    for name in QUANTIZED {
        let expected = golden::logits(name, true);
        let one_by_one: Vec<usize> = (1..expected.tokens.len()).collect();
        for policy in [KEPT, MIXED] {
            let model = load(name, policy);
            for (way, cuts) in
                [("one pass", &[][..]), ("chunks", &[7, 8, 31, 40]), ("one by one", &one_by_one)]
            {
                let values = logits_in_passes(model.as_ref(), &expected.tokens, cuts);
                let worst = worst_difference(&values, &expected.values, expected.vocabulary);
                assert!(worst < tolerance("f32"), "{name}, {policy:?}, {way}: {worst:e} of the spread");
            }
        }
    }
}

#[test]
fn greedy_tokens_with_quantized_weights_equal_the_reference() {
    let _turn = device();
    for name in QUANTIZED {
        let engine = Engine::start(&model_folder(name), &keeping(), |_, _| {}).expect("it loads");
        if engine.spec().dtype != "f32" {
            continue; // The tokens were recorded in f32; a GPU keeps half precision.
        }
        for case in golden::cases(name).cases {
            assert_eq!(
                run(&engine, &case.prompt_ids, &greedy(case.tokens.len())).ids(),
                case.tokens,
                "{name}"
            );
        }
    }
}

#[test]
fn inspect_reports_what_loading_takes() {
    let _turn = device();
    for name in MODELS.into_iter().chain(QUANTIZED) {
        for policy in [KEPT, UNPACKED, MIXED, AS_IN_FILES] {
            let loaded = load(name, policy);
            let (spec, kinds) = model::inspect(&model_folder(name), policy).expect("it can be read");
            // Only loading computes a hash of the weights.
            let mut spec = spec;
            spec.fingerprint = loaded.spec().fingerprint;
            assert_eq!(&spec, loaded.spec(), "{name}");
            assert_eq!(
                kinds.values().map(|kind| kind.device_bytes).sum::<u64>(),
                spec.weight_bytes,
                "{name}"
            );
            assert_eq!(kinds.values().map(|kind| kind.file_bytes).sum::<u64>(), spec.file_bytes, "{name}");
        }
    }
}

/// Returns a copy of a checkpoint in which matrices with `part` in their names are packed separately, if their rows allow it.
fn packed_one_by_one(name: &str, part: &str) -> tempfile::TempDir {
    let scheme = QuantScheme::new(Mode::Nvfp4, None, None).expect("it is possible");
    let pack = |all: &mut Tensors| {
        let fits = |(name, (_, shape, _)): &(&String, &Tensor)| {
            name.contains(part) && shape.last().is_some_and(|inputs| inputs % scheme.group_size == 0)
        };
        let names: Vec<String> = all.iter().filter(fits).map(|(name, _)| name.clone()).collect();
        for name in names {
            let (dtype, shape, bytes) = all.remove(&name).expect("it is there");
            let matrix = array::of_file(&bytes, dtype, &shape).expect("floats");
            let parts = QuantizedMatrix::quantize(&matrix, scheme).and_then(|it| it.to_bytes());
            let module = name.trim_end_matches(".weight");
            for (end, bytes) in ["weight", "scales"].into_iter().zip(parts.expect("it computes")) {
                let dtype = if end == "weight" { FileDtype::U32 } else { FileDtype::U8 };
                let rows: usize = shape[..shape.len() - 1].iter().product();
                let width = bytes.len() * 8 / dtype.bitsize() / rows;
                let shape = [&shape[..shape.len() - 1], &[width]].concat();
                all.insert(format!("{module}.{end}"), (dtype, shape, bytes));
            }
        }
    };
    rewritten(name, pack, |config| {
        config["quantization"] = json!({"mode": "nvfp4", "bits": 4, "group_size": 16});
    })
}

/// Early mixtures were published this way, and so were models with latents before each head had its own matrices.
#[test]
fn matrices_that_were_packed_one_by_one_are_as_the_headers_say() {
    let _turn = device();
    for (name, part, stays_packed) in [
        ("mixtral-f32", ".experts.", true),
        ("deepseek_v2-f32", ".experts.", true),
        ("granitemoe-f32", "input_linear", true),
        ("deepseek_v2-f32", ".kv_b_proj.", false),
    ] {
        let folder = packed_one_by_one(name, part);
        let tokens = golden::logits(name, true).tokens;
        let mut logits = Vec::new();
        for policy in [UNPACKED, KEPT, MIXED] {
            let loaded = model::load(folder.path(), policy, &mut |_, _| {}).expect("it loads");
            let (mut promised, _) = model::inspect(folder.path(), policy).expect("it can be read");
            promised.fingerprint = loaded.spec().fingerprint;
            assert_eq!(&promised, loaded.spec(), "{name}, {part}");
            let values = logits_in_passes(loaded.as_ref(), &tokens, &[7, 8, 31, 32, 33, 40]);
            logits.push((values, loaded.spec().weight_bytes));
        }
        let vocabulary = golden::logits(name, true).vocabulary;
        for (values, bytes) in &logits[1..] {
            let worst = worst_difference(values, &logits[0].0, vocabulary);
            assert!(worst < tolerance("f32"), "{name}, {part}: {worst:e} of the spread");
            assert_eq!(*bytes < logits[0].1, stays_packed, "{name}, {part}");
        }
    }
}

#[test]
fn packed_weights_take_the_reported_memory() {
    let _turn = device();
    for policy in [KEPT, UNPACKED] {
        // A tensor may reuse a larger buffer that an earlier test has freed.
        array::drop_freed_memory().expect("memory");
        let before = array::active_memory().expect("memory");
        let model = load("llama-mixed-f32", policy);
        let held = array::active_memory().expect("memory") - before;
        let said = model.spec().weight_bytes as usize;
        // Buffers are slightly larger than their contents.
        assert!((said..said + said / 20 + 16_384).contains(&held), "{held} bytes are held, {said} were said");
    }
    let bytes = |policy| load("llama-q4-f16", policy).spec().weight_bytes;
    assert!(bytes(UNPACKED) > 5 * bytes(KEPT));
}

#[test]
fn inspect_counts_what_fits() {
    let _turn = device();
    let folder = model_folder("llama-q4-f16");
    let unlimited = inspect(&folder, &keeping()).expect("it can be read");
    assert_eq!(unlimited.memory_fit.longest, unlimited.spec.context_length);
    assert!(unlimited.memory_fit.full_contexts > 1 && unlimited.memory_fit.refusal.is_none());
    let forms: Vec<&str> = unlimited.kinds.keys().map(String::as_str).collect();
    assert_eq!(forms, ["affine 4 bits, groups of 64", "f16"]);
    // The logits of a step exist twice at the same time.
    let many = EngineOptions { max_running: 256, ..keeping() };
    let many = inspect(&folder, &many).expect("it can be read").memory_fit;
    let more = 2 * (256 - 32) * unlimited.spec.footprint.logits_per_row;
    assert_eq!(unlimited.memory_fit.shared - many.shared, more);
    // An engine with this budget admits exactly the reported tokens, and not one more.
    let fixed = unlimited.memory_fit.budget - unlimited.memory_fit.budget / 16 - unlimited.memory_fit.shared;
    let options = EngineOptions { memory_budget: Some((fixed + 400_000) * 16 / 15), ..keeping() };
    let tight = inspect(&folder, &options).expect("it can be read").memory_fit;
    assert!((2..255).contains(&tight.longest) && tight.full_contexts == 0, "{tight:?}");
    let engine = Engine::start(&folder, &options, |_, _| {}).expect("it loads");
    let prompt = |tokens| engine.request(vec![5; tokens], &greedy(0));
    prompt(tight.longest).expect("it fits");
    prompt(tight.longest + 1).expect_err("it does not fit");
    let nothing = EngineOptions { memory_budget: Some(1000), ..keeping() };
    let nothing = inspect(&folder, &nothing).expect("it can be read").memory_fit;
    assert!(nothing.longest == 0 && nothing.refusal.expect("a reason").contains("memory_budget"));
}

/// Returns a folder with these tensors and this `quantization`.
fn folder(all: &BTreeMap<String, Tensor>, quantization: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    tensors::write(&folder.path().join("model.safetensors"), all);
    let config = format!("{{\"quantization\": {quantization}}}");
    std::fs::write(folder.path().join("config.json"), config).expect("it can be written");
    folder
}

fn open(folder: &Path, progress: &mut dyn FnMut(u64, u64), read: impl FnOnce(&mut Weights)) {
    let fields = Fields::read(&folder.join("config.json")).expect("a config");
    let recipe = QuantizationConfig::read(&fields).expect("a recipe");
    read(&mut Weights::open(folder, recipe, UNPACKED, progress).expect("the headers are good"));
}

fn values(array: &Array) -> Vec<f32> {
    array.contiguous().expect("it computes").try_as_slice::<f32>().expect("floats").to_vec()
}

/// Covers expert weights of the shape `[experts, output, input]`.
#[test]
fn a_quantized_stack_is_dequantized_like_each_of_its_matrices() {
    let _turn = device();
    for name in QUANTIZED.into_iter().filter(|name| name.starts_with("llama")) {
        let path = model_folder(name);
        let quantization = Fields::read(&path.join("config.json")).expect("a config");
        let recipe = QuantizationConfig::read(&quantization).expect("a recipe");
        let all = tensors::read(&path.join("model.safetensors"));
        let modules = [0, 1].map(|layer| format!("model.layers.{layer}.self_attn.o_proj"));
        let mut stacked = BTreeMap::new();
        for part in ["weight", "scales", "biases"] {
            let [first, second] = modules.each_ref().map(|module| all.get(&format!("{module}.{part}")));
            let (Some((dtype, shape, first)), Some((.., second))) = (first, second) else { continue };
            let shape = [&[2], shape.as_slice()].concat();
            stacked.insert(format!("experts.{part}"), (*dtype, shape, [first.as_slice(), second].concat()));
        }
        let packing = recipe.of(&modules[0], true).expect("it is packed");
        let (mode, bits, group) = (packing.mode.as_str(), packing.bits, packing.group_size);
        let folder =
            folder(&stacked, &format!(r#"{{"mode": "{mode}", "bits": {bits}, "group_size": {group}}}"#));
        let mut from_stack = Vec::new();
        open(folder.path(), &mut |_, _| {}, |weights| {
            from_stack = values(&weights.take("experts.weight", &[2, 64, 64]).expect("it is there"));
        });
        let mut each = Vec::new();
        open(&path, &mut |_, _| {}, |weights| {
            for module in &modules {
                each.extend(values(
                    &weights.take(&format!("{module}.weight"), &[64, 64]).expect("it is there"),
                ));
            }
        });
        assert_eq!(from_stack, each, "{name}");
        assert!(from_stack.iter().any(|&number| number != 0.0));
    }
}

/// Dequantization runs in slices.
#[test]
fn dequantizing_a_large_matrix_takes_little_more_memory_than_the_result() {
    let _turn = device();
    let (rows, inputs) = (16_384_usize, 1024);
    let words: Vec<u8> = (0..rows * inputs * 6 / 8).map(|index| (index * 31 % 251) as u8).collect();
    let ones: Vec<u8> =
        std::iter::repeat_n(half::f16::ONE.to_le_bytes(), rows * inputs / 64).flatten().collect();
    let scales = (FileDtype::F16, vec![rows, inputs / 64], ones);
    let tensors = BTreeMap::from([
        ("m.weight".to_owned(), (FileDtype::U32, vec![rows, inputs * 6 / 32], words)),
        ("m.scales".to_owned(), scales.clone()),
        ("m.biases".to_owned(), scales),
    ]);
    let folder = folder(&tensors, r#"{"bits": 6, "group_size": 64}"#);
    open(folder.path(), &mut |_, _| {}, |weights| {
        array::reset_peak_memory().expect("memory");
        let before = array::active_memory().expect("memory");
        let matrix = weights.take("m.weight", &[rows, inputs]).expect("it is there");
        let peak = array::peak_memory().expect("memory") - before;
        assert!(peak < matrix.nbytes() * 2, "{peak} bytes for a result of {}", matrix.nbytes());
        // The values 0 to 63, plus one.
        let found = values(&matrix);
        assert!(found.iter().all(|number| (1.0..65.0).contains(number) && number.fract() == 0.0));
    });
}
