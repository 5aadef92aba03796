//! Variants of the checkpoints of other tools: biases of 0 and older packings.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::model;
use mlx_tests::golden::worst_difference;
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{copied, device};

use crate::families::{logits_in_passes, tolerance};
use crate::foreign::{POLICIES, expected, folder};

/// Checks that a changed copy of `name` gives the same logits.
fn assert_same_logits(name: &str, change: impl FnOnce(&Path)) {
    let _turn = device();
    let copy = copied(&folder(name));
    change(copy.path());
    let (tokens, reference) = expected(name);
    for policy in POLICIES {
        let model = model::load(copy.path(), policy, &mut |_, _| {}).expect("it loads");
        let found = logits_in_passes(model.as_ref(), &tokens, &[]);
        let worst = worst_difference(&found, &reference, reference.len() / tokens.len());
        assert!(worst < tolerance("f32"), "{name}, {policy:?}: {worst:e} of the spread");
    }
}

fn change_tensors(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let path = folder.join("model.safetensors");
    let mut all = tensors::read(&path);
    change(&mut all);
    tensors::write(&path, &all);
}

/// AutoGPTQ writes biases of 0 for families without biases. A family with biases may have some of 0, too.
#[test]
fn biases_of_0_are_found_by_families_that_need_them() {
    assert_same_logits("gptq", |folder| {
        let path = folder.join("config.json");
        let text = std::fs::read(&path).expect("a config");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("json");
        (config["attention_bias"], config["mlp_bias"]) = (true.into(), true.into());
        std::fs::write(&path, config.to_string()).expect("it can be written");
    });
}

/// Returns rows of dense codes of 3 bits with ten codes in each word.
fn padded(words: &[u8], rows: usize, inputs: usize) -> Vec<u8> {
    let row = words.len() / rows;
    let code = |words: &[u8], input: usize| {
        (0..3)
            .map(|bit| input * 3 + bit)
            .enumerate()
            .fold(0, |code, (place, bit)| code | u32::from(words[bit / 8] >> (bit % 8) & 1) << place)
    };
    let word = |words: &[u8], first: usize| {
        let codes = (first..inputs.min(first + 10)).map(|input| code(words, input)).enumerate();
        codes.fold(0_u32, |word, (place, code)| word | code << (place * 3))
    };
    let of_row = |words: &[u8]| (0..inputs).step_by(10).map(|first| word(words, first)).collect::<Vec<_>>();
    words.chunks(row).flat_map(of_row).flat_map(u32::to_le_bytes).collect()
}

/// Older versions of compressed-tensors put no code of 3, 5 or 6 bits into two words.
#[test]
fn codes_that_do_not_straddle_words_are_read() {
    assert_same_logits("w3a16", |folder| {
        change_tensors(folder, |all| {
            for (_, (_, shape, bytes)) in all.iter_mut().filter(|(name, _)| name.ends_with("weight_packed")) {
                let (rows, inputs) = (shape[0], shape[1] * 32 / 3);
                *bytes = padded(bytes, rows, inputs);
                shape[1] = inputs.div_ceil(10);
            }
        });
    });
}
