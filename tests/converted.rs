//! Converted checkpoints, with mlx-lm's names and layouts, give the model they were made from, in floats and packed.

use std::path::Path;

use mlx_core::backend::Backend;
use mlx_core::convert::ConvertOptions;
use mlx_core::model;
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_tests::golden::{self, FAMILIES, worst_difference};
use mlx_tests::{device, model_folder};
use serde_json::json;

use crate::convert::{options, run};
use crate::families::{logits_in_passes, tolerance};

/// Dequantized values equal MLX's (tests/packing.rs), and the families are correct with float weights (tests/families.rs). This
/// covers each family with quantized weights.
#[test]
fn every_family_gives_the_same_logits_packed_and_dequantized() {
    let _turn = device();
    // One checkpoint has rows of 48 values, which is not a multiple of the group size.
    for name in FAMILIES.into_iter().filter(|name| *name != "stablelm-parallel-f32") {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("packed");
        // In 4 bits, the scores of two expert groups are 1e-6 apart at one position, so rounding would choose.
        let bits = if name == "deepseek_v3-f32" { 8 } else { 4 };
        let options = options(&json!({"bits": bits, "group": 32}));
        let report = run(&model_folder(name), &target, &options).expect("it converts");
        let plain = folder.path().join("plain");
        run(&model_folder(name), &plain, &ConvertOptions { scheme: None, ..options }).expect("it converts");
        assert!(report.quantized > 0, "{name}: {report:?}");
        let text = golden::logits(name, true);
        let one_by_one: Vec<usize> = (1..text.tokens.len()).collect();
        let logits = |folder: &Path, floats, keep_packed, cuts: &[usize]| {
            let policy = WeightPolicy { floats, keep_packed, backend: Backend::CPU };
            let model =
                model::load(folder, policy, &mut |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
            logits_in_passes(model.as_ref(), &text.tokens, cuts)
        };
        let unpacked = logits(&target, FloatPolicy::F32, false, &[]);
        let original = logits(&model_folder(name), FloatPolicy::F32, false, &[]);
        let converted = logits(&plain, FloatPolicy::F32, false, &[]);
        let worst = worst_difference(&converted, &original, text.vocabulary);
        // Matrices in another layout are multiplied in another order, and the difference depends on the processor: deepseek_v3 was 1.01e-5
        // off on one.
        assert!(worst < 2e-5, "{name}, in floats: {worst:e} of the spread");
        assert!(
            worst_difference(&unpacked, &original, text.vocabulary) > 1e-3,
            "{name}: nothing was lost by packing"
        );
        for (way, cuts) in [("one pass", &[][..]), ("chunks", &[7, 8, 31, 40]), ("one by one", &one_by_one)] {
            let packed = logits(&target, FloatPolicy::F32, true, cuts);
            let worst = worst_difference(&packed, &unpacked, text.vocabulary);
            // Similar keys amplify rounding in these fixtures, and in mamba2 at one position.
            let amplifies = ["qwen3_5", "qwen3_next", "mamba2"].iter().any(|family| name.starts_with(family));
            let most = if amplifies { 3.0 } else { 1.0 } * tolerance("f32");
            assert!(worst < most, "{name}, {way}: {worst:e} of the spread");
        }
        // Some experts stay floats here, and a CPU multiplies those in f32 only.
        if !golden::MIXTURES.contains(&name) {
            let half = logits(&target, FloatPolicy::F16, true, &[7, 8, 31, 40]);
            let worst = worst_difference(&half, &unpacked, text.vocabulary);
            // As in halves.rs, these fixtures amplify rounding, mamba2 at one position.
            let most = match name {
                "qwen3_5-f32" => 0.5,
                "gemma3n_text-f32" | "gemma4_text-f32" | "gemma4_unified-f32" | "mamba2-f32" => 0.7,
                _ => 0.2,
            };
            assert!(worst < most, "{name}, in f16: {worst:e} of the spread");
        }
    }
}
