//! Converted blocks against the values of the reference implementation.

use half::f16;
use mlx_gguf::{Dtype, Mode, Packing, Placement, Tensor, TensorType, packings};

use crate::writer::{all, placed};

/// Random blocks and their values; see `make_golden.py`.
const GOLDEN: &[u8] = include_bytes!("../golden/blocks.bin");

/// Blocks of a type and their values.
struct Case {
    number: u32,
    kind: TensorType,
    blocks: Vec<u8>,
    values: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let mut rest = GOLDEN;
    let mut take = |count: usize| rest.split_off(..count).expect("a complete file");
    let mut cases = Vec::new();
    let total = GOLDEN.len();
    let mut read = 0;
    while read < total {
        let number = u32::from_le_bytes(take(4).try_into().expect("four"));
        let count = u32::from_le_bytes(take(4).try_into().expect("four")) as usize;
        let kind = TensorType::of(number).expect("a known type");
        let blocks = take(count * kind.block_bytes()).to_vec();
        let values = floats(take(count * kind.block_elements() * 4));
        read += 8 + blocks.len() + values.len() * 4;
        cases.push(Case { number, kind, blocks, values });
    }
    cases
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// Returns the numbers of scales or biases.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    let bytes = all(tensor);
    match tensor.dtype() {
        Dtype::F32 => floats(&bytes),
        _ => bytes.as_chunks::<2>().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
    }
}

/// Returns the codes of a packed tensor, read bit by bit.
fn codes(bits: usize, bytes: &[u8]) -> Vec<u8> {
    let bit = |place: usize| bytes[place / 8] >> (place % 8) & 1;
    (0..bytes.len() * 8 / bits)
        .map(|code| (0..bits).map(|index| bit(code * bits + index) << index).sum())
        .collect()
}

/// Returns the values that MLX computes.
fn dequantize(packing: Packing, tensors: &[Tensor]) -> Vec<f32> {
    let codes = codes(packing.bits, &all(&tensors[0]));
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let fp4 = |code: u8| if code < 8 { fp4[usize::from(code)] } else { -fp4[usize::from(code - 8)] };
    let in_groups = codes.iter().enumerate().map(|(index, code)| (index / packing.group_size, *code));
    match packing.mode {
        Mode::Affine => {
            let (scales, biases) = (numbers(&tensors[1]), numbers(&tensors[2]));
            in_groups.map(|(group, code)| scales[group] * f32::from(code) + biases[group]).collect()
        }
        Mode::Mxfp4 => {
            let scales = all(&tensors[1]);
            let scale = |byte: u8| (f64::from(byte) - 127.0).exp2() as f32;
            in_groups.map(|(group, code)| scale(scales[group]) * fp4(code)).collect()
        }
        Mode::Nvfp4 => {
            let scales = all(&tensors[1]);
            in_groups.map(|(group, code)| e4m3(scales[group]) * fp4(code)).collect()
        }
    }
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (f32::from(byte >> 3), f32::from(byte & 7));
    if exponent == 0.0 { mantissa * (-9f32).exp2() } else { (1.0 + mantissa / 8.0) * (exponent - 7.0).exp2() }
}

fn rms(numbers: impl Iterator<Item = f32>) -> f64 {
    let (sum, count) =
        numbers.fold((0.0, 0.0), |(sum, count), number| (sum + f64::from(number).powi(2), count + 1.0));
    f64::sqrt(sum / count)
}

/// Returns the computed values of a case.
fn converted(case: &Case) -> (Packing, Vec<f32>) {
    let elements = case.values.len() as u64;
    let placement = Placement::named("model.w.weight");
    let (_folder, tensors) = placed(&[elements / 2, 2], case.number, case.blocks.clone(), placement);
    let tensors = tensors.expect("a supported type");
    let packing = mlx_gguf::Conversion::of(case.kind).expect("a supported type").packing;
    (packing, dequantize(packing, &tensors))
}

/// Types that are not exact, with the largest rms of the error relative to the rms of the values.
const APPROXIMATE: [(TensorType, f64); 3] =
    [(TensorType::Q6K, 0.004), (TensorType::Q3K, 0.03), (TensorType::Q2K, 0.045)];

#[test]
fn blocks_of_exact_types_have_the_values_of_the_reference_bit_for_bit() {
    let mut types = Vec::new();
    for case in cases() {
        if APPROXIMATE.iter().any(|(kind, _)| *kind == case.kind) {
            continue;
        }
        let (_, values) = converted(&case);
        // The addition of 0 removes the sign of zero: the reference subtracts, MLX adds.
        let bits = |values: &[f32]| values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&values), bits(&case.values), "{}", case.kind);
        types.push(case.kind.name());
    }
    assert_eq!(types.len(), 15, "{types:?}");
}

#[test]
fn merged_groups_have_small_errors() {
    for (kind, limit) in APPROXIMATE {
        let case = cases().into_iter().find(|case| case.kind == kind).expect("a case");
        let (_, values) = converted(&case);
        let errors = values.iter().zip(&case.values).map(|(ours, theirs)| ours - theirs);
        let error = rms(errors) / rms(case.values.iter().copied());
        assert!(error < limit, "{kind}: {error}");
    }
}

#[test]
fn a_merged_group_of_equal_values_is_that_value() {
    // Q6_K with all codes 63 (31 after the subtraction), all scales 2 and d = 0.5; then all zero.
    for (scale, expected) in [(2, 31.0), (0, 0.0)] {
        let mut block = vec![0xff; 192];
        block.extend([scale; 16]);
        block.extend(f16::from_f32(0.5).to_le_bytes());
        let case =
            Case { number: 14, kind: TensorType::Q6K, blocks: block.repeat(2), values: vec![expected; 512] };
        assert_eq!(converted(&case).1, case.values);
    }
}

#[test]
fn a_quantized_tensor_becomes_weight_scales_and_biases() {
    let placement = Placement { shape: Some(vec![2, 1, 64]), ..Placement::named("model.w.weight") };
    let (_folder, tensors) = placed(&[64, 2], 6, vec![1; 88], placement.clone());
    let tensors = tensors.expect("a supported type");
    let described: Vec<_> =
        tensors.iter().map(|tensor| (tensor.name(), tensor.dtype(), tensor.shape().to_vec())).collect();
    assert_eq!(
        described,
        [
            ("model.w.weight", Dtype::U32, vec![2, 1, 10]),
            ("model.w.scales", Dtype::F16, vec![2, 1, 2]),
            ("model.w.biases", Dtype::F16, vec![2, 1, 2]),
        ]
    );
}

#[test]
fn packings_name_the_modules_of_quantized_tensors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = crate::writer::Writer::default()
        .tensor("a", &[32], 2, vec![0; 18])
        .tensor("b", &[2], 0, vec![0; 8])
        .write(folder.path(), "model.gguf");
    let file = mlx_gguf::GgufFile::open(&path).expect("a valid file");
    let placements = [(0, Placement::named("x.a.weight")), (1, Placement::named("x.b.weight"))];
    let packings = packings(&file, &placements);
    assert_eq!(packings.len(), 1);
    assert_eq!(packings[0].0, "x.a");
    assert_eq!((packings[0].1.bits, packings[0].1.group_size, packings[0].1.mode.name()), (4, 32, "affine"));
}
