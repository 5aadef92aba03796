//! Checkpoints that other tools quantized give the logits of their dequantized weights. `golden/foreign.py` wrote them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mlx_core::backend::Backend;
use mlx_core::convert::convert;
use mlx_core::model;
use mlx_core::weights::{FloatPolicy, Kind, Kinds, WeightPolicy};
use mlx_tests::golden::worst_difference;
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{copied, device, golden_folder, model_folder};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::convert::options;
use crate::families::{logits_in_passes, tolerance};
use crate::family_configs::{Tensors, bits, rewritten};

const NAMES: [&str; 20] = [
    "one-bit",
    "w4a16",
    "w4a16-zeros",
    "w4a16-experts",
    "w3a16",
    "w8a16-rows",
    "w8a8-rows",
    "fp8-rows",
    "fp8-tensor-experts",
    "fp8-blocks",
    "fp8-blocks-experts",
    "fp8-stacks",
    "fp8-stacks-blocks",
    "fp8-ue8m0",
    "nvfp4",
    "nvfp4-modelopt-experts",
    "mxfp4",
    "awq",
    "gptq",
    "gptq-rows",
];

const fn policy(floats: FloatPolicy, keep_packed: bool) -> WeightPolicy {
    WeightPolicy { floats, keep_packed, backend: Backend::CPU }
}

/// The policies in f32: packed, dequantized, and the default of a CPU.
pub(crate) const POLICIES: [WeightPolicy; 3] =
    [policy(FloatPolicy::F32, true), policy(FloatPolicy::F32, false), policy(FloatPolicy::Mixed, true)];

pub(crate) fn folder(name: &str) -> PathBuf {
    golden_folder().join("foreign").join(name)
}

/// Returns the tokens and logits of transformers.
pub(crate) fn expected(name: &str) -> (Vec<u32>, Vec<f32>) {
    let tensors = tensors::read(&folder(name).join("expected.safetensors"));
    let words = |name: &str| tensors[name].2.as_chunks::<4>().0.iter().copied();
    (words("tokens").map(u32::from_le_bytes).collect(), words("logits").map(f32::from_le_bytes).collect())
}

#[test]
fn checkpoints_of_other_tools_give_the_logits_of_their_dequantized_weights() {
    let _turn = device();
    let mut off = Vec::new();
    for name in NAMES {
        let (tokens, reference) = expected(name);
        let one_by_one: Vec<usize> = (1..tokens.len()).collect();
        for policy in POLICIES {
            let model =
                model::load(&folder(name), policy, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
            for cuts in [&[][..], &[7, 8, 20], &one_by_one] {
                let found = logits_in_passes(model.as_ref(), &tokens, cuts);
                let worst = worst_difference(&found, &reference, reference.len() / tokens.len());
                if worst >= tolerance("f32") {
                    off.push(format!(
                        "{name}, {:?}, packed {}: {worst:e}",
                        policy.floats, policy.keep_packed
                    ));
                }
            }
        }
    }
    assert!(off.is_empty(), "differences in shares of the spread: {off:#?}");
}

/// ModelOpt's older checkpoints have their settings only in a separate file.
#[test]
fn settings_of_modelopt_may_be_in_a_file_of_their_own() {
    let _turn = device();
    let name = "fp8-tensor-experts";
    let copy = copied(&folder(name));
    config(|settings| *settings = Value::Null)(copy.path());
    let settings = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}});
    std::fs::write(copy.path().join("hf_quant_config.json"), settings.to_string())
        .expect("it can be written");
    let (tokens, reference) = expected(name);
    let model = model::load(copy.path(), POLICIES[0], &mut |_, _| {}).expect("it loads");
    let found = logits_in_passes(model.as_ref(), &tokens, &[]);
    let worst = worst_difference(&found, &reference, reference.len() / tokens.len());
    assert!(worst < tolerance("f32"), "{worst:e} of the spread");
}

#[test]
fn inspect_reports_what_loading_checkpoints_of_other_tools_takes() {
    let _turn = device();
    for name in NAMES {
        let size = std::fs::metadata(folder(name).join("model.safetensors")).expect("the fixture").len();
        for policy in POLICIES {
            let loaded = model::load(&folder(name), policy, &mut |_, _| {}).expect("it loads");
            let (mut spec, kinds) = model::inspect(&folder(name), policy).expect("it can be read");
            spec.fingerprint = loaded.spec().fingerprint;
            assert_eq!(&spec, loaded.spec(), "{name}");
            let sum = |of: fn(&Kind) -> u64| kinds.values().map(of).sum::<u64>();
            assert_eq!(sum(|kind| kind.device_bytes), spec.weight_bytes, "{name}");
            assert_eq!(sum(|kind| kind.file_bytes), spec.file_bytes, "{name}");
            // The rest is the header and tensors that are not used.
            assert!(
                spec.file_bytes < size && size - spec.file_bytes < 9000,
                "{name}: {size} {}",
                spec.file_bytes
            );
        }
    }
}

fn kinds(name: &str) -> Kinds {
    model::inspect(&folder(name), POLICIES[2]).expect("it can be read").1
}

#[test]
fn inspect_names_the_format_in_memory_and_a_different_one_in_the_files() {
    let _turn = device();
    for (name, label) in [
        ("one-bit", "affine 2 bits, groups of 32 (in the files: 1 bit)"),
        ("w4a16", "affine 4 bits, groups of 32"),
        ("w3a16", "affine 3 bits, groups of 32"),
        ("w8a16-rows", "affine 8 bits, groups of 32"),
        ("fp8-rows", "mxfp8 8 bits, groups of 32"),
        ("fp8-stacks", "mxfp8 8 bits, groups of 32"),
        ("fp8-stacks-blocks", "bf16 (in the files: fp8 in blocks)"),
        ("fp8-ue8m0", "mxfp8 8 bits, groups of 32"),
        ("fp8-blocks", "bf16 (in the files: fp8 in blocks)"),
        ("nvfp4", "nvfp4 4 bits, groups of 16"),
        ("awq", "affine 4 bits, groups of 32"),
    ] {
        let kinds = kinds(name);
        assert!(kinds.contains_key(label), "{name}: {kinds:?}");
    }
}

/// Returns the error of loading a copy of `name` with a change.
fn refusal(name: &str, change: impl FnOnce(&Path)) -> String {
    let copy = copied(&folder(name));
    change(copy.path());
    let loaded = model::load(copy.path(), POLICIES[0], &mut |_, _| {});
    loaded.err().unwrap_or_else(|| panic!("{name} must be refused")).to_string()
}

fn config(change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
    move |folder| {
        let path = folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        change(&mut config["quantization_config"]);
        std::fs::write(path, config.to_string()).expect("it can be written");
    }
}

/// Changes tensors of the module `QUERY`.
fn query(change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> impl FnOnce(&Path) {
    move |folder| {
        let path = folder.join("model.safetensors");
        let mut all = tensors::read(&path);
        change(&mut all);
        tensors::write(&path, &all);
    }
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";

/// Replaces the shape of a tensor of `QUERY`; the number of bytes stays.
fn shape(part: &'static str, shape: &'static [usize]) -> impl FnOnce(&Path) {
    query(move |all| all.get_mut(&format!("{QUERY}.{part}")).expect("a tensor").1 = shape.to_vec())
}

fn assert_says(message: &str, words: &[&str]) {
    assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks one of {words:?}");
}

#[test]
fn settings_that_cannot_be_kept_are_refused_by_name() {
    let _turn = device();
    let group =
        |key: &'static str, to: Value| config(move |it| it["config_groups"]["group_0"]["weights"][key] = to);
    let set = |key: &'static str, to: Value| config(move |it| it[key] = to);
    assert_says(&refusal("w4a16", group("num_bits", json!(7))), &["config.json", "num_bits", "7"]);
    assert_says(&refusal("w4a16", group("group_size", json!(16))), &["group_size", "16", "multiples of 32"]);
    assert_says(&refusal("w4a16", group("strategy", json!("tensor"))), &["strategy", "tensor"]);
    assert_says(
        &refusal("w4a16", set("format", json!("marlin-24"))),
        &["format", "marlin-24", "pack-quantized"],
    );
    assert_says(
        &refusal("w4a16", set("sparsity_config", json!({"format": "sparse-24-bitmask"}))),
        &["sparse-24"],
    );
    let transforms = json!({"config_groups": {"u": {"type": "hadamard"}}});
    assert_says(&refusal("w4a16", set("transform_config", transforms)), &["transform_config"]);
    assert_says(&refusal("awq", set("version", json!("gemv"))), &["version", "gemv", "gemm"]);
    assert_says(&refusal("awq", set("bits", json!(3))), &["bits", "3"]);
    assert_says(&refusal("gptq", set("bits", json!(3))), &["bits", "3"]);
    assert_says(
        &refusal("gptq", set("checkpoint_format", json!("marlin"))),
        &["checkpoint_format", "marlin"],
    );
    assert_says(&refusal("gptq", set("dynamic", json!({".*mlp.*": {"bits": 8}}))), &["dynamic", "mlp"]);
    assert_says(&refusal("fp8-blocks", set("fmt", json!("e5m2"))), &["fmt", "e5m2"]);
    assert_says(
        &refusal("fp8-blocks", set("weight_block_size", json!([0, 128]))),
        &["weight_block_size", "0"],
    );
    let algorithm = set("quant_algo", json!("W4A8_AWQ"));
    assert_says(&refusal("fp8-tensor-experts", algorithm), &["quant_algo", "W4A8_AWQ", "NVFP4"]);
}

#[test]
fn tensors_that_do_not_fit_their_settings_are_named() {
    let _turn = device();
    let without = |part: &'static str| query(move |all| drop(all.remove(&format!("{QUERY}.{part}"))));
    let scales = format!("{QUERY}.weight_scale");
    assert_says(&refusal("w4a16", without("weight_scale")), &[&scales, "missing"]);
    assert_says(&refusal("fp8-rows", without("weight_scale")), &[QUERY, "weight_scale is missing"]);
    assert_says(&refusal("awq", without("qzeros")), &[QUERY, "qzeros", "missing"]);
    assert_says(
        &refusal("nvfp4", without("weight_global_scale")),
        &[QUERY, "weight_global_scale", "missing"],
    );
    assert_says(&refusal("w4a16", shape("weight_packed", &[16, 32])), &[QUERY, "weight_scale", "64 rows"]);
    assert_says(&refusal("w4a16", shape("weight_packed", &[512])), &[QUERY, "weight_packed", "[512]"]);
    assert_says(&refusal("w4a16", shape("weight_scale", &[128, 1])), &[QUERY, "weight_scale", "128 rows"]);
    assert_says(&refusal("fp8-rows", shape("weight_scale", &[8, 8])), &[QUERY, "weight_scale", "[8, 8]"]);
    assert_says(&refusal("gptq", shape("scales", &[64, 2])), &[QUERY, "scales", "[64, 2]", "[2, 64]"]);
    assert_says(&refusal("gptq", shape("qzeros", &[16])), &[QUERY, "qzeros", "[16]"]);
    assert_says(&refusal("awq", shape("qweight", &[512, 1])), &[QUERY, "scales"]);
    assert_says(&refusal("nvfp4", shape("weight_scale", &[4, 64])), &[QUERY, "weight_scale", "[64, 4]"]);
    let reordered = query(|all| {
        let (.., bytes) = all.get_mut(&format!("{QUERY}.g_idx")).expect("a tensor");
        bytes[..4].copy_from_slice(&1_i32.to_le_bytes());
    });
    assert_says(&refusal("gptq", reordered), &[QUERY, "g_idx", "32 times"]);
    let with_input_scales = query(|all| {
        all.insert(format!("{QUERY}.pre_quant_scale"), (Dtype::F32, vec![1], vec![0; 4]));
    });
    assert_says(&refusal("nvfp4-modelopt-experts", with_input_scales), &[QUERY, "pre_quant_scale"]);
}

#[test]
fn only_dequantized_checkpoints_of_other_tools_can_be_converted() {
    let _turn = device();
    let [four_bits, floats] = [json!({"bits": 4, "group": 32}), json!({})].map(|case| options(&case));
    let target = tempfile::tempdir().expect("a temporary folder");
    let goes_on = &mut |_, _| ControlFlow::Continue(());
    for name in ["one-bit", "w4a16", "awq", "fp8-rows"] {
        for options in [&four_bits, &floats] {
            let error = convert(&folder(name), &target.path().join(name), options, goes_on).expect_err(name);
            assert_says(&error.to_string(), &["config.json", "quantization", "original"]);
        }
    }
    let name = "fp8-blocks-experts";
    for (options, label) in [(&four_bits, "affine 4 bits, groups of 32"), (&floats, "bf16")] {
        let target = target.path().join(label);
        convert(&folder(name), &target, options, goes_on).expect("it converts");
        let (_, kinds) = model::inspect(&target, POLICIES[2]).expect("it can be read");
        assert!(kinds.contains_key(label), "{kinds:?}");
        let model = model::load(&target, POLICIES[2], &mut |_, _| {}).expect("it loads");
        if label == "bf16" {
            let (tokens, reference) = expected(name);
            let found = logits_in_passes(model.as_ref(), &tokens, &[]);
            let worst = worst_difference(&found, &reference, reference.len() / tokens.len());
            assert!(worst < tolerance("f32"), "{worst:e} of the spread");
        }
    }
}

/// Splits `{prefix}.gate_up_proj` and `{prefix}.down_proj` of all experts into one tensor per expert and projection.
fn split_experts(all: &mut Tensors, transposed: bool) {
    let stacks: Vec<String> = all.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    assert!(!stacks.is_empty());
    for name in stacks {
        let (dtype, shape, bytes) = all.remove(&name).expect("it is listed");
        let (prefix, part) = name.rsplit_once('.').expect("it has a prefix");
        let parts: &[&str] = if part == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
        let numbers = bytes.as_chunks::<4>().0;
        for (expert, matrix) in numbers.chunks(shape[1] * shape[2]).enumerate() {
            let rows: Vec<Vec<[u8; 4]>> = if transposed {
                (0..shape[2])
                    .map(|output| matrix.iter().skip(output).step_by(shape[2]).copied().collect())
                    .collect()
            } else {
                matrix.chunks(shape[2]).map(<[_]>::to_vec).collect()
            };
            for (own, rows) in parts.iter().zip(rows.chunks(rows.len() / parts.len())) {
                let tensor = (dtype, vec![rows.len(), rows[0].len()], rows.concat().concat());
                all.insert(format!("{prefix}.{expert}.{own}.weight"), tensor);
            }
        }
    }
}

/// llm-compressor splits stacks of experts before it quantizes them.
#[test]
fn experts_that_a_tool_wrote_apart_give_the_same_logits() {
    let _turn = device();
    for (name, transposed) in [("qwen3_vl_moe-f32", true), ("gemma4-f32", false)] {
        let apart = rewritten(name, |all| split_experts(all, transposed), |_| {});
        let [found, expected] = [apart.path(), &model_folder(name)]
            .map(|folder| bits(folder).into_iter().map(f32::from_bits).collect::<Vec<_>>());
        let worst = worst_difference(&found, &expected, expected.len() / 40);
        assert!(worst < tolerance("f32"), "{name}: {worst:e} of the spread");
    }
}
