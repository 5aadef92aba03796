//! Slices of rewritten matrices, as several machines load them.

use std::path::PathBuf;

use crate::array;
use crate::backend::Backend;
use crate::config::Fields;
use crate::device_lock::device;
use crate::quantization::{MATRIX_PARTS, QuantizationConfig};
use crate::weights::{AxisSelection, FloatPolicy, WeightPolicy, Weights};

const OUTPUT: &str = "model.layers.0.self_attn.o_proj";
const SIDE: usize = 64;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/foreign")).join(name)
}

/// Returns the numbers of a matrix `[64, 64]`, of which `cut` selects one half along an axis.
fn numbers(name: &str, cut: Option<(usize, usize)>) -> Vec<f32> {
    let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed: false, backend: Backend::CPU };
    let fields = Fields::read(&folder(name).join("config.json")).expect("a config");
    let quantization = QuantizationConfig::read(&fields).expect("valid settings");
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(&folder(name), quantization, policy, progress).expect("good headers");
    let mut shape = [SIDE, SIDE];
    if let Some((axis, half)) = cut {
        let places = AxisSelection { of: 2, ranges: vec![half..half + 1; 1] };
        for part in MATRIX_PARTS.into_iter().filter(|part| axis == 2 || *part != "row_scales") {
            weights.cut(&format!("{OUTPUT}.{part}"), axis, &places).expect("it is even");
        }
        shape[2 - axis] /= 2;
    }
    let matrix = weights.take(&format!("{OUTPUT}.weight"), &shape).expect("it is there");
    array::host::<f32>(&matrix).expect("floats").to_vec()
}

#[test]
fn a_machine_gets_its_slice_of_a_rewritten_matrix() {
    let _turn = device();
    let names =
        ["one-bit", "w4a16", "w4a16-zeros", "fp8-rows", "fp8-blocks", "fp8-ue8m0", "nvfp4", "awq", "gptq"];
    for name in names {
        let whole = numbers(name, None);
        assert!(whole.iter().any(|number| *number != 0.0));
        for half in [0, 1] {
            let rows = &whole[half * SIDE * SIDE / 2..][..SIDE * SIDE / 2];
            assert_eq!(numbers(name, Some((2, half))), rows, "{name}, outputs");
            let columns: Vec<f32> =
                whole.chunks(SIDE).flat_map(|row| &row[half * SIDE / 2..][..SIDE / 2]).copied().collect();
            assert_eq!(numbers(name, Some((1, half))), columns, "{name}, inputs");
        }
    }
}
