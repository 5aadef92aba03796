//! Quantized matrices in every mode, compared with numbers decoded bit by bit on the host.

use std::collections::BTreeMap;

use half::f16;

use mlx_core::backend::Backend;
use mlx_core::config::Fields;
use mlx_core::quantization::QuantizedMatrix;
use mlx_core::quantization::{Mode, QuantScheme, QuantizationConfig};
use mlx_core::weights::{FloatPolicy, WeightPolicy, Weights};
use mlx_rs::{Array, Dtype};
use mlx_tests::tensors::{self, Tensor};
use mlx_tests::{Dice, cpu, device};
use safetensors::Dtype as FileDtype;

const OUTPUTS: usize = 24;
const INPUTS: usize = 256;

fn schemes() -> Vec<QuantScheme> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    let affine = affine.map(|(bits, group)| QuantScheme { mode: Mode::Affine, bits, group_size: group });
    let floats = [(Mode::Mxfp4, 4, 32), (Mode::Mxfp8, 8, 32), (Mode::Nvfp4, 4, 16)];
    affine.chain(floats.map(|(mode, bits, group)| QuantScheme { mode, bits, group_size: group })).collect()
}

/// An 8-bit float: sign, 4 exponent bits, 3 fraction bits.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let size =
        if exponent == 0 { fraction * 2f32.powi(-6) } else { (1.0 + fraction) * 2f32.powi(exponent - 7) };
    if code & 128 == 0 { size } else { -size }
}

/// A 4-bit float: sign, 2 exponent bits, 1 fraction bit.
fn e2m1(code: u8) -> f32 {
    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// A random matrix: its values and its quantized tensors.
struct MadeUp {
    numbers: Vec<f32>,
    tensors: BTreeMap<String, Tensor>,
}

fn make_up(scheme: QuantScheme, outputs: usize) -> MadeUp {
    make_up_with(scheme, outputs, (scheme.bits * scheme.group_size) as u64)
}

fn make_up_with(scheme: QuantScheme, outputs: usize, seed: u64) -> MadeUp {
    let QuantScheme { mode, bits, group_size: group } = scheme;
    let mut dice = Dice::new(seed);
    let groups = outputs * INPUTS / group;
    // 127 and 255 are NaN in 8-bit floats.
    let codes: Vec<u8> =
        (0..outputs * INPUTS).map(|_| (dice.below(1 << bits) as u8) & !(u8::from(bits == 8))).collect();
    let scales: Vec<u8> =
        (0..groups).map(|_| if mode == Mode::Nvfp4 { 40 } else { 120 } + dice.below(12) as u8).collect();
    let float = |code: u8| f16::from_f32(f32::from(code) / 512.0 - 0.21);
    let number = |(index, &code): (usize, &u8)| match (mode, scales[index / group]) {
        // The bias is derived from the scale.
        (Mode::Affine, scale) => float(scale).to_f32() * f32::from(code) + float(255 - scale).to_f32(),
        (Mode::Mxfp4, scale) => e2m1(code) * 2f32.powi(i32::from(scale) - 127),
        (Mode::Mxfp8, scale) => e4m3(code) * 2f32.powi(i32::from(scale) - 127),
        (Mode::Nvfp4, scale) => e2m1(code) * e4m3(scale),
    };
    let numbers = codes.iter().enumerate().map(number).collect();
    // A row is a bit string, lowest bit first.
    let mut bytes = vec![0_u8; outputs * INPUTS * bits / 8];
    for (index, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            bytes[(index * bits + bit) / 8] |= (code >> bit & 1) << ((index * bits + bit) % 8);
        }
    }
    let halves =
        |codes: &[u8], turn: u8| codes.iter().flat_map(|code| float(code ^ turn).to_le_bytes()).collect();
    let shape = |width| vec![outputs, width];
    let mut tensors =
        BTreeMap::from([("m.weight".to_owned(), (FileDtype::U32, shape(INPUTS * bits / 32), bytes))]);
    if mode == Mode::Affine {
        let width = INPUTS / group;
        tensors.insert("m.scales".to_owned(), (FileDtype::F16, shape(width), halves(&scales, 0)));
        tensors.insert("m.biases".to_owned(), (FileDtype::F16, shape(width), halves(&scales, 255)));
    } else {
        tensors.insert("m.scales".to_owned(), (FileDtype::U8, shape(INPUTS / group), scales));
    }
    MadeUp { numbers, tensors }
}

fn load(scheme: QuantScheme, tensors: &BTreeMap<String, Tensor>, outputs: usize) -> QuantizedMatrix {
    let folder = tempfile::tempdir().expect("a temporary folder");
    tensors::write(&folder.path().join("model.safetensors"), tensors);
    let QuantScheme { mode, bits, group_size: group } = scheme;
    let config =
        serde_json::json!({"quantization": {"mode": mode.as_str(), "bits": bits, "group_size": group}});
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).expect("it can be written");
    let quantization =
        QuantizationConfig::read(&Fields::read(&path).expect("a config")).expect("valid settings");
    let policy = WeightPolicy { floats: FloatPolicy::F32, keep_packed: true, backend: Backend::CPU };
    let progress = &mut |_, _| {};
    let mut weights = Weights::open(folder.path(), quantization, policy, progress).expect("good headers");
    weights.take_quantized(&[("m", &[outputs, INPUTS])]).expect("a good matrix").expect("it is packed")
}

fn values(array: &Array) -> Vec<f32> {
    array.contiguous().expect("it computes").try_as_slice::<f32>().expect("floats").to_vec()
}

fn bits(array: &Array) -> Vec<u32> {
    values(array).into_iter().map(f32::to_bits).collect()
}

fn random(dice: &mut Dice, rows: usize) -> Array {
    let numbers: Vec<f32> = (0..rows * INPUTS).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
    Array::from_slice(&numbers, &[rows as i32, INPUTS as i32])
}

#[test]
fn every_mode_dequantizes_to_the_decoded_numbers() {
    let _turn = device();
    for scheme in schemes() {
        let made = make_up(scheme, OUTPUTS);
        let packed = load(scheme, &made.tensors, OUTPUTS);
        assert_eq!(
            values(&packed.dequantize(Dtype::Float32).expect("it computes")),
            made.numbers,
            "{scheme}"
        );
        // MLX's own operation.
        let rows = packed.rows(&Array::from_slice(&[7_u32, 0, 23, 7], &[4]), Dtype::Float32).expect("rows");
        let expected: Vec<f32> =
            [7, 0, 23, 7].iter().flat_map(|row| &made.numbers[row * INPUTS..][..INPUTS]).copied().collect();
        assert_eq!(values(&rows), expected, "{scheme}");
    }
}

#[test]
fn every_mode_multiplies_by_the_decoded_numbers() {
    let _turn = device();
    let mut dice = Dice::new(3);
    for scheme in schemes() {
        let made = make_up(scheme, OUTPUTS);
        let packed = load(scheme, &made.tensors, OUTPUTS);
        let input = random(&mut dice, 3);
        let product = values(&packed.multiply(&input).expect("it computes"));
        let expected =
            values(&input).chunks(INPUTS).flat_map(|x| products(x, &made.numbers)).collect::<Vec<_>>();
        for ((sum, size), found) in expected.into_iter().zip(product) {
            assert!((sum - f64::from(found)).abs() < 1e-5 * size, "{scheme}: {found} instead of {sum}");
        }
    }
}

/// Covers stacks of experts and of latent heads.
#[test]
fn every_mode_multiplies_by_the_matrices_of_a_stack() {
    let _turn = device();
    let mut dice = Dice::new(6);
    for scheme in schemes() {
        let made = [5, 6, 7].map(|seed| make_up_with(scheme, OUTPUTS, seed));
        let parts = made.each_ref().map(|it| load(scheme, &it.tensors, OUTPUTS));
        let rows = QuantizedMatrix::stack(&parts.each_ref()).expect("their schemes are equal");
        let stack = rows.reshape_to_stack(parts.len()).expect("their shapes are equal");
        let input = random(&mut dice, 12);
        let expected: Vec<Vec<(f64, f64)>> = values(&input)
            .chunks(INPUTS)
            .flat_map(|x| made.each_ref().map(|it| products(x, &it.numbers)))
            .collect();
        let expect = |found: &[f32], row: usize, matrix: usize, how: &str| {
            for (found, (sum, size)) in found.iter().zip(&expected[row * made.len() + matrix]) {
                let is_near = (sum - f64::from(*found)).abs() < 1e-5 * size;
                assert!(is_near, "{scheme}, {how}: {found} instead of {sum}");
            }
        };
        // Rows sorted by matrix, as in prompts, and unsorted rows.
        for (chosen, sorted) in
            [([0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2], true), ([2, 0, 1, 0, 2, 2, 1, 0, 0, 1, 2, 0], false)]
        {
            let rows = input.reshape(&[12, 1, INPUTS as i32]).expect("rows");
            let found = stack.gather_multiply(&rows, &Array::from_slice(&chosen, &[12]), sorted);
            for (row, found) in values(&found.expect("it computes")).chunks(OUTPUTS).enumerate() {
                expect(found, row, chosen[row] as usize, "chosen");
            }
        }
        // Four steps, and a prompt of four rows.
        for (shape, matrix_of) in [([4, 3, 1, INPUTS as i32], 1), ([1, 3, 4, INPUTS as i32], 4)] {
            let found = stack.multiply(&input.reshape(&shape).expect("rows")).expect("it computes");
            for (row, found) in values(&found).chunks(OUTPUTS).enumerate() {
                expect(found, row, row / matrix_of % 3, "each");
            }
        }
    }
}

/// Returns the products of a row with each row of a matrix, and the sum of the absolute values of the terms.
fn products(x: &[f32], numbers: &[f32]) -> Vec<(f64, f64)> {
    let product = |w: &[f32]| {
        let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        (terms().sum(), terms().map(f64::abs).sum())
    };
    numbers.chunks(INPUTS).map(product).collect()
}

/// Bit-exactness with packed weights on a CPU requires this; the engine also checks it at load.
#[test]
fn a_row_of_a_quantized_product_has_the_same_bits_at_any_batch_size() {
    let _turn = cpu();
    let mut dice = Dice::new(4);
    for scheme in schemes() {
        let packed = load(scheme, &make_up(scheme, OUTPUTS).tensors, OUTPUTS);
        let all = random(&mut dice, 32);
        let together = bits(&packed.multiply(&all).expect("it computes"));
        for width in [1, 2, 3, 4, 8, 16, 31] {
            let some = mlx_core::array::slice_axis(&all, 0, 0, width).expect("rows");
            let found = bits(&packed.multiply(&some).expect("it computes"));
            assert_eq!(found, together[..width as usize * OUTPUTS], "{scheme}, {width} rows");
        }
    }
}

#[test]
fn a_stack_equals_the_concatenated_matrices() {
    let _turn = device();
    for scheme in schemes() {
        let [one, other] = [OUTPUTS, 8].map(|outputs| make_up(scheme, outputs));
        let parts = [load(scheme, &one.tensors, OUTPUTS), load(scheme, &other.tensors, 8)];
        let stacked = QuantizedMatrix::stack(&[&parts[0], &parts[1]]).expect("their schemes are equal");
        assert_eq!(stacked.bytes(), parts[0].bytes() + parts[1].bytes());
        let unpacked = values(&stacked.dequantize(Dtype::Float32).expect("it computes"));
        assert_eq!(unpacked, [one.numbers, other.numbers].concat(), "{scheme}");
    }
}

/// A scale of each row, as files of other tools have them, applies in every operation.
#[test]
fn scales_of_rows_multiply_the_rows_of_every_result() {
    let _turn = device();
    let (scheme, mut dice) = (QuantScheme { mode: Mode::Mxfp8, bits: 8, group_size: 32 }, Dice::new(9));
    let made = [5, 6].map(|seed| make_up_with(scheme, OUTPUTS, seed));
    let factor = |row: usize| 1.0 + (row * 7 % 13) as f32 / 64.0;
    let parts = made.each_ref().map(|it| {
        let scales: Vec<f32> = (0..OUTPUTS).map(factor).collect();
        let scales = Array::from_slice(&scales, &[OUTPUTS as i32, 1]);
        load(scheme, &it.tensors, OUTPUTS).with_row_scales(Some(scales))
    });
    let scaled = |it: &MadeUp| -> Vec<f32> {
        it.numbers.iter().enumerate().map(|(at, number)| number * factor(at / INPUTS)).collect()
    };
    let numbers = made.each_ref().map(scaled);
    let plain = load(scheme, &made[0].tensors, OUTPUTS);
    assert!(!plain.has_same_scheme(&parts[0]) && parts[0].has_same_scheme(&parts[1]));
    assert_eq!(parts[0].bytes(), plain.bytes() + 4 * OUTPUTS);
    let f32 = Dtype::Float32;
    assert_eq!(values(&parts[0].dequantize(f32).expect("it computes")), numbers[0]);
    assert_eq!(values(&parts[0].dequantize_on_device(f32).expect("it computes")), numbers[0]);
    let chosen = Array::from_slice(&[7_u32, 0, 23], &[3]);
    let picked: Vec<f32> =
        [7, 0, 23].iter().flat_map(|row| &numbers[0][row * INPUTS..][..INPUTS]).copied().collect();
    assert_eq!(values(&parts[0].rows(&chosen, f32).expect("rows")), picked);
    let selected = parts[0].select_rows(&chosen).expect("rows").evaluated().expect("it computes");
    assert_eq!(values(&selected.dequantize(f32).expect("it computes")), picked);
    let rows = QuantizedMatrix::stack(&[&parts[0], &parts[1]]).expect("their schemes are equal");
    assert_eq!(values(&rows.dequantize(f32).expect("it computes")), numbers.concat());
    let stack = rows.reshape_to_stack(2).expect("their shapes are equal");
    let input = random(&mut dice, 4);
    let near = |found: &[f32], row: usize, matrix: usize| {
        let input = values(&input);
        for (found, (sum, size)) in
            found.iter().zip(products(&input[row * INPUTS..][..INPUTS], &numbers[matrix]))
        {
            assert!((sum - f64::from(*found)).abs() < 1e-5 * size, "{found} instead of {sum}");
        }
    };
    let found = values(&parts[1].multiply(&input).expect("it computes"));
    found.chunks(OUTPUTS).enumerate().for_each(|(row, found)| near(found, row, 1));
    for chosen in [[0, 0, 1, 1], [1, 0, 0, 1]] {
        let rows = input.reshape(&[4, 1, INPUTS as i32]).expect("rows");
        let found = stack.gather_multiply(&rows, &Array::from_slice(&chosen, &[4]), chosen[0] == 0);
        let found = values(&found.expect("it computes"));
        found.chunks(OUTPUTS).enumerate().for_each(|(row, found)| near(found, row, chosen[row] as usize));
    }
    let found =
        stack.multiply(&input.reshape(&[1, 2, 2, INPUTS as i32]).expect("rows")).expect("it computes");
    values(&found).chunks(OUTPUTS).enumerate().for_each(|(row, found)| near(found, row, row / 2));
}
