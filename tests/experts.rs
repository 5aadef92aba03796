//! Quantized experts, in the format of gpt-oss and of MLX's tools: they equal float experts, dequantized or kept packed.

use std::path::Path;

use mlx_core::array::Rows;
use mlx_core::backend::Backend;
use mlx_core::cache::Variant;
use mlx_core::model::{self, Batch};
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_rs::Array;
use mlx_rs::ops::{dequantize, quantize};
use mlx_tests::golden::worst_difference;
use mlx_tests::tensors::Tensor;
use mlx_tests::{Dice, device};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::family_configs::{Tensors, rewritten};

const EXPERTS: usize = 4;
const WIDTH: usize = 32;
const INNER: usize = 64;
const LAYERS: usize = 3;

/// Returns the logits of a short text in one pass, followed by the logits of five batched steps.
fn logits(folder: &Path, floats: FloatPolicy, keep_packed: bool) -> Vec<f32> {
    let policy = WeightPolicy { floats, keep_packed, backend: Backend::CPU };
    let model = model::load(folder, policy, &mut |_, _| {}).expect("the checkpoint loads");
    let tokens: Vec<u32> = (20..60).collect();
    let mut cache = model.new_state(Variant::default());
    let hidden = model.forward(Batch::prompt(&tokens, 0), &mut [&mut cache]).expect("the pass runs");
    let values = |hidden: &Array| {
        let rows = Rows::new(&model.logits(hidden).expect("the head runs")).expect("rows");
        rows.values().expect("values").to_vec()
    };
    let mut all = values(&hidden);
    for position in 40..45 {
        let hidden = model
            .forward(Batch::decode(&[(7, position)]).padded(4).expect("padding"), &mut [&mut cache])
            .expect("the step runs");
        all.extend_from_slice(&values(&hidden)[..320]);
    }
    all
}

fn floats(numbers: &[f32], shape: &[usize]) -> Tensor {
    (Dtype::F32, shape.to_vec(), numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

/// Returns a stack of `EXPERTS` matrices in mxfp4: its values as `[experts, outputs, inputs]`, and its blocks and scales.
fn blocks(dice: &mut Dice, outputs: usize, inputs: usize) -> (Vec<f32>, [Tensor; 2]) {
    let count = EXPERTS * outputs * inputs;
    let codes: Vec<u8> = (0..count).map(|_| dice.below(16) as u8).collect();
    let scales: Vec<u8> = (0..count / 32).map(|_| 122 + dice.below(3) as u8).collect();
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let number = |(place, &code): (usize, &u8)| {
        let size = sizes[usize::from(code & 7)] * 2f32.powi(i32::from(scales[place / 32]) - 127);
        if code & 8 == 0 { size } else { -size }
    };
    let numbers = codes.iter().enumerate().map(number).collect();
    let (pairs, _) = codes.as_chunks::<2>();
    let bytes = pairs.iter().map(|[low, high]| low | high << 4).collect();
    let groups = inputs / 32;
    let blocks = (Dtype::U8, vec![EXPERTS, outputs, groups, 16], bytes);
    (numbers, [blocks, (Dtype::U8, vec![EXPERTS, outputs, groups], scales)])
}

/// Returns the values as `[experts, inputs, outputs]`.
fn transposed(numbers: &[f32], outputs: usize, inputs: usize) -> Vec<f32> {
    let place = |expert: usize, output: usize, input: usize| (expert * outputs + output) * inputs + input;
    let inputs_of = |expert| (0..inputs).map(move |input| (expert, input));
    (0..EXPERTS)
        .flat_map(inputs_of)
        .flat_map(|(expert, input)| (0..outputs).map(move |output| place(expert, output, input)))
        .map(|place| numbers[place])
        .collect()
}

/// Returns gpt-oss with random experts, in floats or in the published format.
fn gpt_oss(published: bool) -> tempfile::TempDir {
    let tensors = |all: &mut Tensors| {
        let mut dice = Dice::new(3);
        all.retain(|name, _| !name.contains(".experts."));
        for layer in 0..LAYERS {
            let place = format!("model.layers.{layer}.mlp.experts");
            for (name, outputs, inputs) in [("gate_up_proj", 2 * INNER, WIDTH), ("down_proj", WIDTH, INNER)] {
                let (numbers, [blocks, scales]) = blocks(&mut dice, outputs, inputs);
                if published {
                    all.insert(format!("{place}.{name}_blocks"), blocks);
                    all.insert(format!("{place}.{name}_scales"), scales);
                } else {
                    let shape = [EXPERTS, inputs, outputs];
                    let numbers = floats(&transposed(&numbers, outputs, inputs), &shape);
                    all.insert(format!("{place}.{name}"), numbers);
                }
                let biases: Vec<f32> =
                    (0..EXPERTS * outputs).map(|_| dice.below(100) as f32 / 300.0 - 0.15).collect();
                all.insert(format!("{place}.{name}_bias"), floats(&biases, &[EXPERTS, outputs]));
            }
        }
    };
    rewritten("gpt_oss-f32", tensors, |config: &mut Value| {
        config["intermediate_size"] = json!(INNER);
        if published {
            config["quantization_config"] =
                json!({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]});
        }
    })
}

/// Returns Mixtral with random experts, stacked as by MLX's tools, in 4 bits or as equal floats.
fn mixtral(packed: bool) -> tempfile::TempDir {
    let tensors = |all: &mut Tensors| {
        let mut dice = Dice::new(4);
        all.retain(|name, _| !name.contains(".experts."));
        for layer in 0..LAYERS {
            let place = format!("model.layers.{layer}.block_sparse_moe.switch_mlp");
            for (name, outputs, inputs) in
                [("gate_proj", INNER, WIDTH), ("up_proj", INNER, WIDTH), ("down_proj", WIDTH, INNER)]
            {
                let numbers: Vec<f32> =
                    (0..EXPERTS * outputs * inputs).map(|_| dice.below(1000) as f32 / 900.0 - 0.55).collect();
                let shape = [EXPERTS as i32, outputs as i32, inputs as i32];
                // Gate and up differ in their scheme, so they cannot be one product.
                let bits = if name == "up_proj" { 8 } else { 4 };
                let (words, scales, biases) =
                    quantize(Array::from_slice(&numbers, &shape), 32, bits).expect("it can be packed");
                let unpacked = dequantize(&words, &scales, &biases, 32, bits).expect("it can be unpacked");
                let shape =
                    |array: &Array| array.shape().iter().map(|&size| size as usize).collect::<Vec<_>>();
                let tensor = |array: &Array| {
                    array.eval().expect("it computes");
                    floats(array.as_slice::<f32>(), &shape(array))
                };
                if packed {
                    words.eval().expect("it computes");
                    let bytes = words.as_slice::<u32>().iter().flat_map(|word| word.to_le_bytes()).collect();
                    all.insert(format!("{place}.{name}.weight"), (Dtype::U32, shape(&words), bytes));
                    all.insert(format!("{place}.{name}.scales"), tensor(&scales));
                    all.insert(format!("{place}.{name}.biases"), tensor(&biases));
                } else {
                    all.insert(format!("{place}.{name}.weight"), tensor(&unpacked));
                }
            }
        }
    };
    rewritten("mixtral-f32", tensors, |config: &mut Value| {
        config["intermediate_size"] = json!(INNER);
        if packed {
            let mut quantization = json!({"group_size": 32, "bits": 4});
            for layer in 0..LAYERS {
                quantization[format!("model.layers.{layer}.block_sparse_moe.switch_mlp.up_proj")] =
                    json!({"group_size": 32, "bits": 8});
            }
            config["quantization"] = quantization;
        }
    })
}

fn assert_same(family: &str, plain: &Path, packed: &Path) {
    let expected = logits(plain, FloatPolicy::F32, false);
    for (keep_packed, limit) in [(false, 1e-5), (true, 1e-4)] {
        let worst = worst_difference(&logits(packed, FloatPolicy::F32, keep_packed), &expected, 320);
        assert!(worst < limit, "{family}, kept packed {keep_packed}: {worst:e} of the spread");
    }
    // Rounding may route a token to another expert, so some rows may differ.
    let half = logits(packed, FloatPolicy::F16, true);
    let rows = half.chunks(320).zip(expected.chunks(320));
    let mut differences: Vec<f32> =
        rows.map(|(row, expected)| worst_difference(row, expected, 320)).collect();
    differences.sort_by(f32::total_cmp);
    let median = differences[differences.len() / 2];
    assert!(median < 0.05, "{family}, in f16: {median:e} of the spread");
    let bytes = |keep_packed| {
        let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed, backend: Backend::CPU };
        model::load(packed, policy, &mut |_, _| {}).expect("it loads").spec().weight_bytes
    };
    assert!(2 * bytes(true) < bytes(false), "{family}: what is kept packed takes as much as floats");
}

#[test]
fn published_gpt_oss_equals_its_dequantized_weights() {
    let _turn = device();
    assert_same("gpt_oss", gpt_oss(false).path(), gpt_oss(true).path());
}

#[test]
fn quantized_stacks_of_experts_equal_their_dequantized_weights() {
    let _turn = device();
    assert_same("mixtral", mixtral(false).path(), mixtral(true).path());
}

/// Returns Mixtral with separate experts, some of them with bf16 values, stored as bf16 or f32.
fn with_halves(as_halves: bool) -> tempfile::TempDir {
    let tensors = |all: &mut Tensors| {
        for name in ["0.block_sparse_moe.experts.1.w1", "0.block_sparse_moe.experts.2.w3"] {
            let (dtype, _, bytes) = all.get_mut(&format!("model.layers.{name}.weight")).expect("an expert");
            let halves: Vec<u8> =
                bytes.as_chunks::<4>().0.iter().flat_map(|&[.., low, high]| [low, high]).collect();
            if as_halves {
                (*dtype, *bytes) = (Dtype::BF16, halves);
            } else {
                *bytes =
                    halves.as_chunks::<2>().0.iter().flat_map(|&[low, high]| [0, 0, low, high]).collect();
            }
        }
    };
    rewritten("mixtral-f32", tensors, |_| {})
}

#[test]
fn single_experts_may_have_numbers_of_different_types() {
    let _turn = device();
    let [one, other] = [with_halves(true), with_halves(false)];
    assert_eq!(logits(one.path(), FloatPolicy::F32, false), logits(other.path(), FloatPolicy::F32, false));
}

#[test]
fn a_missing_expert_is_named() {
    let name = "model.layers.1.block_sparse_moe.experts.3.w1.weight";
    let folder = rewritten("mixtral-f32", |all| drop(all.remove(name)), |_| {});
    let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed: false, backend: Backend::CPU };
    let _turn = device();
    let error = model::load(folder.path(), policy, &mut |_, _| {}).err().expect("an expert is missing");
    assert!(error.to_string().contains(&format!("{name} is missing")), "{error}");
}
