//! Rewritten matrices: their slices, as several machines load them, and their float types.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Value, json};

use crate::array;
use crate::backend::Backend;
use crate::config::Fields;
use crate::device_lock::device;
use crate::quantization::{MATRIX_PARTS, QuantizationConfig};
use crate::weights::{AxisSelection, FloatPolicy, Progress, WeightPolicy, Weights};

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

/// Returns a folder with these tensors and quantization settings.
fn written(settings: &Value, tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes fit the shape"))
    });
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("it can be written");
    let config = json!({"quantization_config": settings}).to_string();
    std::fs::write(folder.path().join("config.json"), config).expect("it can be written");
    folder
}

fn opened<'a>(folder: &Path, floats: FloatPolicy, progress: Progress<'a>) -> Weights<'a> {
    let policy = WeightPolicy { floats, keep_packed: false, backend: Backend::CPU };
    let fields = Fields::read(&folder.join("config.json")).expect("a config");
    let quantization = QuantizationConfig::read(&fields).expect("valid settings");
    Weights::open(folder, quantization, policy, progress).expect("good headers")
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Blocks of 32 x 32 with these scales, in modules named by the keys.
fn fp8_blocks(scales: &[(String, f32)]) -> tempfile::TempDir {
    let of_module = |(module, scale): &(String, f32)| {
        let codes = if *scale == 0.0 { vec![0; 1024] } else { vec![0x38; 1024] };
        [
            (format!("{module}.weight"), Dtype::F8_E4M3, vec![32, 32], codes),
            (format!("{module}.weight_scale_inv"), Dtype::F32, vec![1, 1], bytes_of(&[*scale])),
        ]
    };
    let tensors: Vec<_> = scales.iter().flat_map(of_module).collect();
    // Two blocks beside each other, so that the scale of a block is not that of a row.
    let wide: Vec<_> = tensors
        .into_iter()
        .map(|(name, dtype, mut shape, bytes)| {
            shape[1] *= 2;
            (name, dtype, shape, bytes.repeat(2))
        })
        .collect();
    written(&json!({"quant_method": "fp8", "weight_block_size": [32, 32]}), &wide)
}

#[test]
fn one_block_whose_scale_is_no_power_of_two_makes_only_its_matrix_floats() {
    let _turn = device();
    let module = |layer: usize| format!("model.layers.{layer}.self_attn.o_proj");
    let mut scales: Vec<_> = (0..40).map(|layer| (module(layer), 0.25)).collect();
    (scales[7].1, scales[33].1) = (0.0, 0.3);
    let folder = fp8_blocks(&scales);
    let progress = &mut |_, _| {};
    let mut weights = opened(folder.path(), FloatPolicy::F32, progress);
    for (layer, (module, scale)) in scales.iter().enumerate() {
        assert_eq!(weights.has(&format!("{module}.scales")), layer != 33, "{module}");
        let matrix = weights.take(&format!("{module}.weight"), &[32, 64]).expect("it is readable");
        let rounded = half::bf16::from_f32(*scale).to_f32();
        assert!(
            array::host::<f32>(&matrix).expect("floats").iter().all(|it| it.to_bits() == rounded.to_bits())
        );
    }
}

/// Experts of a layer become one stack, so they have one format.
#[test]
fn experts_of_a_layer_have_one_format() {
    let _turn = device();
    let module = |layer: usize, expert: usize| format!("model.layers.{layer}.mlp.experts.{expert}.up_proj");
    let place = |number: usize| (module(number / 4, number % 4), if number == 6 { 0.3 } else { 0.5 });
    let folder = fp8_blocks(&(0..12).map(place).collect::<Vec<_>>());
    let progress = &mut |_, _| {};
    let weights = opened(folder.path(), FloatPolicy::Checkpoint, progress);
    for layer in 0..3 {
        let packed = (0..4).filter(|expert| weights.has(&format!("{}.scales", module(layer, *expert))));
        assert_eq!(packed.count(), if layer == 1 { 0 } else { 4 }, "{layer}");
    }
}

#[test]
fn scales_do_not_choose_the_float_type_of_the_model() {
    let _turn = device();
    let norm = ("model.norm.weight".to_owned(), Dtype::BF16, vec![8], vec![0; 16]);
    let module = "model.layers.0.self_attn.o_proj";
    let codes = (format!("{module}.weight"), Dtype::F8_E4M3, vec![32, 32], vec![0x38; 1024]);
    let scales = (format!("{module}.weight_scale"), Dtype::F32, vec![32, 1], bytes_of(&[0.3; 32]));
    let folder = written(&json!({"quant_method": "fp8"}), &[norm, codes, scales]);
    let progress = &mut |_, _| {};
    let weights = opened(folder.path(), FloatPolicy::Checkpoint, progress);
    assert!(weights.has(&format!("{module}.row_scales")));
    assert_eq!(weights.label(), "bf16");
}

/// The product of a zero point and a scale needs more digits than a 16-bit float has.
#[test]
fn zero_points_of_8_bits_are_exact() {
    let _turn = device();
    let (inputs, outputs) = (64, 8);
    let code = |input: usize, output: usize| (input * 37 + output * 11) % 256;
    let scale = |output: usize| half::f16::from_f32(0.01 + 0.0013 * output as f32);
    let zero = |output: usize| 255 - 9 * output;
    let mut words = Vec::new();
    for input in (0..inputs).step_by(4) {
        for output in 0..outputs {
            words.extend((0..4).map(|place| code(input + place, output) as u8));
        }
    }
    // Zero points are stored minus 1.
    let zeros = (0..outputs).map(|output| (zero(output) - 1) as u8).collect();
    let halves = (0..outputs).flat_map(|output| scale(output).to_le_bytes()).collect();
    let part = |end: &str| format!("{OUTPUT}.{end}");
    let tensors = [
        (part("qweight"), Dtype::I32, vec![inputs / 4, outputs], words),
        (part("qzeros"), Dtype::I32, vec![1, outputs / 4], zeros),
        (part("scales"), Dtype::F16, vec![1, outputs], halves),
        ("model.norm.weight".to_owned(), Dtype::BF16, vec![8], vec![0; 16]),
    ];
    let folder = written(&json!({"quant_method": "gptq", "bits": 8, "group_size": -1}), &tensors);
    let fields = Fields::read(&folder.path().join("config.json")).expect("a config");
    for floats in [FloatPolicy::Checkpoint, FloatPolicy::F32, FloatPolicy::Mixed] {
        let policy = WeightPolicy { floats, keep_packed: true, backend: Backend::CPU };
        let quantization = QuantizationConfig::read(&fields).expect("valid settings");
        let progress = &mut |_, _| {};
        let mut weights = Weights::open(folder.path(), quantization, policy, progress).expect("good headers");
        let expected_bytes = weights.survey().0.device_bytes;
        let named: [(&str, &[usize]); 1] = [(OUTPUT, &[outputs, inputs])];
        let packed = weights.take_quantized(&named).expect("it is there").expect("it stays packed");
        assert_eq!(packed.bytes() as u64 + 8 * weights.tally.float_bytes(), expected_bytes);
        // A product has the type of its inputs.
        let input = array::of_file(&[0; 256], Dtype::F32, &[1, inputs]).expect("an array");
        let input = input.as_dtype(weights.dtype()).expect("a type");
        assert_eq!(packed.multiply(&input).expect("a product").dtype(), weights.dtype());
        if floats == FloatPolicy::Checkpoint {
            assert_eq!(weights.label(), "bf16");
            continue;
        }
        let numbers = packed.dequantize(weights.dtype()).expect("floats");
        for (place, number) in array::host::<f32>(&numbers).expect("floats").iter().enumerate() {
            let (output, input) = (place / inputs, place % inputs);
            let expected = (code(input, output) as f32 - zero(output) as f32) * scale(output).to_f32();
            let about = format!("{floats:?}, output {output}, input {input}");
            assert_eq!(number.to_bits(), expected.to_bits(), "{number} instead of {expected}, {about}");
        }
    }
}

/// Inputs of a group need not follow each other.
#[test]
fn inputs_of_gptq_are_reordered_by_group() {
    let _turn = device();
    let (inputs, outputs) = (64, 8);
    let group_of = |input: usize| input * 7 % 2;
    let code = |input: usize, output: usize| (input * 5 + output * 3) % 16;
    let scale = |group: usize, output: usize| half::f16::from_f32(0.5 + group as f32 + 0.25 * output as f32);
    let zero = |group: usize, output: usize| 1 + (group * 5 + output) % 15;
    let mut words = Vec::new();
    for input in (0..inputs).step_by(8) {
        for output in 0..outputs {
            let codes = (0..8).map(|place| (code(input + place, output) as u32) << (place * 4));
            words.extend(codes.fold(0, |word, code| word | code).to_le_bytes());
        }
    }
    let halves =
        (0..2).flat_map(|group| (0..outputs).flat_map(move |output| scale(group, output).to_le_bytes()));
    let zeros = (0..2).flat_map(|group| {
        // Stored minus 1.
        let codes = (0..outputs).map(|output| (zero(group, output) as u32 - 1) << (output * 4));
        codes.fold(0, |word, code| word | code).to_le_bytes()
    });
    let indices = (0..inputs).flat_map(|input| (group_of(input) as i32).to_le_bytes());
    let part = |end: &str| format!("{OUTPUT}.{end}");
    let tensors = [
        (part("qweight"), Dtype::I32, vec![inputs / 8, outputs], words),
        (part("qzeros"), Dtype::I32, vec![2, 1], zeros.collect()),
        (part("scales"), Dtype::F16, vec![2, outputs], halves.collect()),
        (part("g_idx"), Dtype::I32, vec![inputs], indices.collect()),
    ];
    let settings = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true});
    let folder = written(&settings, &tensors);
    let progress = &mut |_, _| {};
    let mut weights = opened(folder.path(), FloatPolicy::F32, progress);
    let matrix = weights.take(&format!("{OUTPUT}.weight"), &[outputs, inputs]).expect("it is there");
    for (place, number) in array::host::<f32>(&matrix).expect("floats").iter().enumerate() {
        let (output, input) = (place / inputs, place % inputs);
        let group = group_of(input);
        let expected =
            (code(input, output) as f32 - zero(group, output) as f32) * scale(group, output).to_f32();
        assert_eq!(number.to_bits(), expected.to_bits(), "output {output}, input {input}");
    }
}
