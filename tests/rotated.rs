//! Bonsai 2: quantized matrices whose inputs are rotated give the logits of the matrices that this means for plain inputs.

use std::ops::ControlFlow;

use mlx_core::convert::convert;
use mlx_core::model;
use mlx_tests::device;
use mlx_tests::golden::worst_difference;
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::convert::options;
use crate::families::{logits_in_passes, tolerance};
use crate::family_configs::{Tensors, rewritten};
use crate::foreign::POLICIES;

const FIXTURE: &str = "qwen3_5-q4-f32";
const HEAD: &str = "language_model.lm_head.signs";
const PREFIX: &str = "language_model.";

/// The number of inputs in a group and in a block.
const BLOCK: usize = 32;

fn sign(input: usize) -> f32 {
    if input * input % 5 < 2 { -1.0 } else { 1.0 }
}

/// The published models keep the small matrices of gated delta layers as they are.
fn is_rotated(module: &str) -> bool {
    !module.ends_with("in_proj_a") && !module.ends_with("in_proj_b")
}

fn modules(all: &Tensors) -> Vec<String> {
    all.keys().filter_map(|name| name.strip_suffix(".scales")).map(str::to_owned).collect()
}

/// Returns the fixture as a Bonsai. Its matrices get another meaning.
fn rotated(change: impl FnOnce(&mut Tensors, &mut Vec<Value>)) -> TempDir {
    let mut records = Vec::new();
    let add_signs = |all: &mut Tensors| {
        for module in modules(all).into_iter().filter(|module| is_rotated(module)) {
            let inputs = BLOCK * all[&format!("{module}.scales")].1[1];
            let signs = (0..inputs).flat_map(|input| sign(input).to_le_bytes()).collect();
            all.insert(format!("{module}.signs"), (Dtype::F32, vec![inputs], signs));
            let path = module.strip_prefix(PREFIX).expect("the prefix of the text");
            records.push(json!({"path": path, "block": BLOCK, "embedding": path.contains("embed"), "dtype": "float16"}));
        }
        change(all, &mut records);
    };
    let copy = rewritten(FIXTURE, add_signs, |_| {});
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a config")).expect("json");
    config["model_type"] = "prism_hadamard_qwen35".into();
    config["base_model_type"] = "qwen3_5".into();
    config["gdn_activation_layout"] = "grouped".into();
    config["schema_version"] = 2.into();
    config["modules"] = records.into();
    std::fs::write(path, config.to_string()).expect("it can be written");
    copy
}

/// Returns the numbers of a 4-bit matrix for plain inputs.
fn dense(all: &mut Tensors, module: &str) -> (Vec<usize>, Vec<u8>) {
    let mut take = |part: &str| all.remove(&format!("{module}.{part}")).expect("a part of the matrix");
    let [words, scales, biases] = ["weight", "scales", "biases"].map(&mut take);
    let floats =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect::<Vec<_>>();
    let (shape, scales, biases) = (scales.1, floats(&scales.2), floats(&biases.2));
    let inputs = BLOCK * shape[1];
    let mut numbers = Vec::new();
    // A group is a block, too.
    for (group, codes) in words.2.chunks(BLOCK / 2).enumerate() {
        let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let packed: Vec<f32> = codes.map(|code| scales[group] * f32::from(code) + biases[group]).collect();
        let first = group * BLOCK % inputs;
        let plain = |place: usize| {
            let is_even = |other: usize| (place & other).count_ones().is_multiple_of(2);
            let terms = packed.iter().enumerate();
            let sum: f32 = terms.map(|(other, number)| if is_even(other) { *number } else { -number }).sum();
            sign(first + place) * sum / (BLOCK as f32).sqrt()
        };
        let of_place = |place: usize| if is_rotated(module) { plain(place) } else { packed[place] };
        numbers.extend((0..BLOCK).flat_map(|place| of_place(place).to_le_bytes()));
    }
    (vec![shape[0], inputs], numbers)
}

#[test]
fn rotated_matrices_give_the_logits_of_plain_ones() {
    let _turn = device();
    let plain = rewritten(
        FIXTURE,
        |all| {
            for module in modules(all) {
                let (shape, bytes) = dense(all, &module);
                all.insert(format!("{module}.weight"), (Dtype::F32, shape, bytes));
            }
        },
        |config| {
            let config = config.as_object_mut().expect("an object");
            config.remove("quantization");
            config.remove("quantization_config");
        },
    );
    let tokens: Vec<u32> = (20..60).collect();
    let one_by_one: Vec<usize> = (1..tokens.len()).collect();
    let load =
        |folder: &TempDir, policy| model::load(folder.path(), policy, &mut |_, _| {}).expect("it loads");
    let reference = logits_in_passes(load(&plain, POLICIES[0]).as_ref(), &tokens, &[]);
    let bonsai = rotated(|_, _| {});
    for policy in POLICIES {
        let model = load(&bonsai, policy);
        let (mut spec, _) = model::inspect(bonsai.path(), policy).expect("it can be read");
        spec.fingerprint = model.spec().fingerprint;
        assert_eq!(&spec, model.spec(), "{policy:?}");
        for cuts in [&[][..], &one_by_one] {
            let found = logits_in_passes(model.as_ref(), &tokens, cuts);
            let worst = worst_difference(&found, &reference, reference.len() / tokens.len());
            assert!(worst < tolerance("f32"), "{policy:?}: {worst:e} of the spread");
        }
    }
}

#[test]
fn rotations_that_cannot_be_applied_are_refused_by_name() {
    let _turn = device();
    let refusal = |change: fn(&mut Tensors, &mut Vec<Value>)| {
        let loaded = model::load(rotated(change).path(), POLICIES[0], &mut |_, _| {});
        loaded.err().expect("it must be refused").to_string()
    };
    let message = refusal(|all, _| drop(all.remove(HEAD)));
    assert!(message.contains(HEAD) && message.contains("missing"), "{message}");
    let message =
        refusal(|all, _| all.get_mut(HEAD).expect("signs").2[..4].copy_from_slice(&2_f32.to_le_bytes()));
    assert!(message.contains(HEAD) && message.contains("1 and -1"), "{message}");
    let message = refusal(|_, records| records.iter_mut().for_each(|record| record["block"] = 24.into()));
    assert!(message.contains("signs") && message.contains("24"), "{message}");
    let message = refusal(|_, records| records.retain(|record| record["path"] != "lm_head"));
    assert!(message.contains(HEAD), "{message}");
    // MLX's format has no place for signs.
    let bonsai = rotated(|_, _| {});
    let target = tempfile::tempdir().expect("a temporary folder");
    let floats = options(&json!({}));
    let error =
        convert(bonsai.path(), &target.path().join("c"), &floats, &mut |_, _| ControlFlow::Continue(()));
    let message = error.expect_err("signs").to_string();
    assert!(message.contains(".signs") && message.contains("MLX's format"), "{message}");
}
