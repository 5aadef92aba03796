//! Ranges of tensors, row orders and changes.

use mlx_gguf::{Change, ColumnOrder, Placement, RowOrder, TensorType, Tiles};
use proptest::prelude::*;

use crate::writer::{all, placed};

/// Type numbers with different blocks: F32, F16, Q4_0, Q5_1, Q8_0, Q5_K, Q6_K, IQ4_XS, MXFP4 and NVFP4.
const TYPES: [u32; 10] = [0, 1, 2, 7, 8, 13, 14, 23, 39, 40];

/// Columns that stay together: two groups of 32, the fewest that a K block gives.
const SEGMENT: usize = 64;

/// Returns bytes that differ from block to block.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn size(kind: u32, elements: usize) -> usize {
    let kind = TensorType::of(kind).expect("a known type");
    elements / kind.block_elements() * kind.block_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_range_equals_the_range_of_the_reordered_whole(
        kind in prop::sample::select(&TYPES),
        heads in 1usize..4,
        blocks in 1usize..4,
        order in 0usize..5,
        tiled in any::<bool>(),
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8),
    ) {
        let (rows, width) = (heads * 6, blocks * 256);
        let bytes = noise(size(kind, rows * width));
        let rows_of = [
            RowOrder::Same,
            RowOrder::Halves { head_dim: 6 },
            RowOrder::Part { period: 6, start: 2, count: 3 },
            RowOrder::Tiled { first: 0, heads: Tiles { groups: 2, heads: 3, size: heads } },
            RowOrder::Repeated { times: 3 },
        ][order];
        let tiles = Tiles { groups: 2, heads: 2 * blocks, size: SEGMENT };
        let columns = if tiled { ColumnOrder::Tiled { heads: tiles } } else { ColumnOrder::Same };
        let kept = rows_of.count(rows).expect("the order fits");
        let (dimensions, shape) = ([width as u64, rows as u64], Some(vec![kept, width]));
        let placement = Placement { rows: rows_of, columns, shape, ..Placement::named("w.weight") };
        let (_plain_folder, plain) = placed(&dimensions, kind, bytes.clone(), Placement::named("w.weight"));
        let (_folder, tensors) = placed(&dimensions, kind, bytes, placement);
        for (plain, tensor) in plain.expect("a supported type").iter().zip(tensors.expect("it fits")) {
            let plain = all(plain);
            let row = plain.len() / rows;
            let segment = row * SEGMENT / width;
            let whole: Vec<u8> = (0..kept)
                .flat_map(|folder| (0..width / SEGMENT).map(move |column| (folder, column)))
                .flat_map(|(folder, column)| {
                    let stored = columns.stored(column * SEGMENT) / SEGMENT;
                    &plain[rows_of.stored(folder) * row + stored * segment..][..segment]
                })
                .copied()
                .collect();
            prop_assert_eq!(all(&tensor), whole.clone());
            for (start, end) in &ranges {
                let (start, end) = (start.index(whole.len() + 1), end.index(whole.len() + 1));
                let (start, end) = (start.min(end), start.max(end));
                let mut range = vec![0; end - start];
                tensor.read_at(start as u64, &mut range).expect("the range is readable");
                prop_assert_eq!(&range, &whole[start..end]);
            }
        }
    }
}

#[test]
fn a_read_after_the_end_is_an_error() {
    let (_folder, tensors) = placed(&[32], 2, vec![0; 18], Placement::named("w.weight"));
    let tensors = tensors.expect("a supported type");
    assert!(tensors[0].read_at(0, &mut [0; 17]).is_err());
    assert!(tensors[0].read_at(u64::MAX, &mut [0; 17]).is_err());
    assert!(tensors[0].read_at(16, &mut []).is_ok());
}

/// Rows of f32, each with its number.
fn numbered(rows: usize, columns: usize) -> Vec<u8> {
    (0..rows).flat_map(|row| (row as f32).to_le_bytes().repeat(columns)).collect()
}

#[test]
fn rows_of_halves_are_gathered() {
    // Small heads that fit into the buffer together, and heads longer than the buffer.
    for columns in [1, 100, 70_000] {
        let placement = Placement { rows: RowOrder::Halves { head_dim: 6 }, ..Placement::named("w") };
        let (_folder, tensors) = placed(&[columns as u64, 12], 0, numbered(12, columns), placement);
        let bytes = all(&tensors.expect("floats")[0]);
        let order: Vec<f32> = bytes
            .chunks_exact(columns * 4)
            .map(|row| {
                assert!(row.as_chunks::<4>().0.iter().all(|number| number == &row[..4]));
                f32::from_le_bytes([row[0], row[1], row[2], row[3]])
            })
            .collect();
        assert_eq!(order, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 7.0, 9.0, 11.0]);
    }
}

#[test]
fn a_tensor_longer_than_the_buffer_is_read_completely() {
    let bytes = noise(34 * 100_000);
    let (_folder, tensors) = placed(&[3_200_000], 8, bytes.clone(), Placement::named("w.weight"));
    let codes = all(&tensors.expect("a supported type")[0]);
    let expected: Vec<u8> =
        bytes.chunks_exact(34).flat_map(|block| block[2..].iter().map(|code| code ^ 128)).collect();
    assert!(codes == expected);
}

#[test]
fn floats_change() {
    let placed_floats = |change, kind, bytes| {
        let placement = Placement { change, shape: Some(vec![2, 1]), ..Placement::named("w") };
        let (_folder, tensors) = placed(&[2], kind, bytes, placement);
        all(&tensors.expect("floats")[0])
    };
    let f32s = |numbers: [f32; 2]| numbers.map(f32::to_le_bytes).concat();
    assert_eq!(placed_floats(Change::MinusOne, 0, f32s([1.25, 0.0])), f32s([0.25, -1.0]));
    assert_eq!(placed_floats(Change::LogOfNegative, 0, f32s([-1.0, -2.0])), f32s([0.0, 2f32.ln()]));
    let f16s = |numbers: [f32; 2]| numbers.map(|number| half::f16::from_f32(number).to_le_bytes()).concat();
    assert_eq!(placed_floats(Change::MinusOne, 1, f16s([1.25, 0.0])), f16s([0.25, -1.0]));
    let bf16s = |numbers: [f32; 2]| numbers.map(|number| half::bf16::from_f32(number).to_le_bytes()).concat();
    assert_eq!(placed_floats(Change::MinusOne, 30, bf16s([1.25, 0.0])), bf16s([0.25, -1.0]));
}

#[test]
fn impossible_placements_are_errors() {
    let error = |kind, placement| {
        let (_folder, tensors) = placed(&[256, 4], kind, noise(size(kind, 1024)), placement);
        let message = tensors.expect_err("an error").to_string();
        message.split_once(".gguf: ").expect("the path").1.to_owned()
    };
    let named = || Placement::named("x.weight");
    assert_eq!(
        error(16, named()),
        "tensor w is IQ2_XXS, a type that MLX cannot hold; use another quantization of this model, such as Q4_K_M or Q8_0"
    );
    assert_eq!(
        error(2, Placement { change: Change::MinusOne, ..named() }),
        "tensor w is Q4_0; it must be a tensor of floats"
    );
    assert_eq!(
        error(2, Placement::named("x.bias")),
        "tensor w is Q4_0, but x.bias must be a tensor of floats"
    );
    assert_eq!(
        error(0, Placement { shape: Some(vec![3, 256]), ..named() }),
        "tensor w has the shape [4, 256], but x.weight needs [3, 256]"
    );
    assert_eq!(
        error(2, Placement { shape: Some(vec![8, 128]), ..named() }),
        "tensor w is Q4_0 in rows of 256; it cannot have the shape [8, 128]"
    );
    for head_dim in [0, 3, 8] {
        assert_eq!(
            error(0, Placement { rows: RowOrder::Halves { head_dim }, ..named() }),
            format!("tensor w has 4 rows, which are not heads of {head_dim} rows")
        );
    }
}

#[test]
fn threads_read_the_same_tensor() {
    let bytes = noise(34 * 1000);
    let (_folder, tensors) = placed(&[32_000], 8, bytes, Placement::named("w.weight"));
    let tensor = &tensors.expect("a supported type")[0];
    let whole = all(tensor);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let expected = &whole[part * 8000..part * 8000 + 8000];
            scope.spawn(move || {
                let mut bytes = vec![0; 8000];
                tensor.read_at(part as u64 * 8000, &mut bytes).expect("the range is readable");
                assert!(bytes == expected);
            });
        }
    });
}
