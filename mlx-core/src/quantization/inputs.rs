//! Changes of the inputs of quantized matrices. Some tools quantize a matrix in another basis or order of its inputs.

use mlx_rs::ops::multiply;
use mlx_rs::{Array, Dtype};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Result;

/// The tensors of a module that describe the change of its inputs: signs of a rotation, `[input]`, and an order, `[input]` of u32.
pub(crate) const INPUT_PARTS: [&str; 2] = ["signs", "input_order"];

/// A change of inputs. The packed matrix multiplies changed inputs.
#[derive(Clone)]
pub(crate) struct InputChange {
    kind: Kind,
    /// A hash of the signs or the order.
    hash: u128,
}

#[derive(Clone)]
enum Kind {
    /// Inputs are multiplied by signs. Then a Hadamard transform replaces each block of inputs, as in QuaRot (Ashkboos et al., 2024,
    /// arXiv:2404.00456).
    Rotation {
        /// `[input]` in f32, each 1 or -1.
        signs: Array,
        /// The number of inputs in a block, a power of two that divides their number.
        block: usize,
    },
    /// Input `i` of the packed matrix is input `order[i]`.
    Order {
        /// `[input]`
        order: Array,
        /// The inverse permutation.
        inverse: Array,
    },
}

impl InputChange {
    /// Creates a rotation. The caller has checked the signs and the block.
    pub(crate) fn rotation(signs: &[f32], block: usize) -> Self {
        let bytes = signs.iter().flat_map(|sign| sign.to_le_bytes()).chain((block as u64).to_le_bytes());
        let hash = xxh3_128(&bytes.collect::<Vec<u8>>());
        let signs = Array::from_slice(signs, &[signs.len() as i32]);
        Self { kind: Kind::Rotation { signs, block }, hash }
    }

    /// Creates an order. The caller has checked that it is a permutation.
    pub(crate) fn order(order: &[u32]) -> Self {
        let mut inverse = vec![0; order.len()];
        for (place, input) in order.iter().enumerate() {
            inverse[*input as usize] = place as u32;
        }
        let array = |numbers: &[u32]| Array::from_slice(numbers, &[numbers.len() as i32]);
        let bytes: Vec<u8> = order.iter().flat_map(|input| input.to_le_bytes()).collect();
        Self { kind: Kind::Order { order: array(order), inverse: array(&inverse) }, hash: xxh3_128(&bytes) }
    }

    /// Returns true if both changes give the same inputs.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.hash == other.hash
    }

    /// Changes inputs, `[..., input]`.
    pub(super) fn apply(&self, input: &Array) -> Result<Array> {
        match &self.kind {
            Kind::Rotation { signs, block } => {
                let signed = multiply(input.as_dtype(Dtype::Float32)?, signs)?;
                Ok(transformed(&signed, *block)?.as_dtype(input.dtype())?)
            }
            Kind::Order { order, .. } => Ok(input.take_axis(order, -1)?),
        }
    }

    /// Changes rows of the packed matrix, `[..., input]`, to rows that multiply unchanged inputs.
    pub(super) fn restore(&self, rows: &Array) -> Result<Array> {
        match &self.kind {
            Kind::Rotation { signs, block } => {
                let rotated = transformed(&rows.as_dtype(Dtype::Float32)?, *block)?;
                Ok(multiply(rotated, signs)?.as_dtype(rows.dtype())?)
            }
            Kind::Order { inverse, .. } => Ok(rows.take_axis(inverse, -1)?.contiguous()?),
        }
    }
}

/// Returns the normalized Hadamard transform of each block of the last axis. It is its own inverse.
fn transformed(numbers: &Array, block: usize) -> Result<Array> {
    let blocks = numbers.reshape(&[-1, block as i32])?;
    let scale = (block as f32).sqrt().recip();
    Ok(blocks.hadamard_transform(scale)?.reshape(numbers.shape())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array;
    use crate::device_lock::device;
    use crate::quantization::{Mode, QuantScheme, QuantizedMatrix};

    const SCHEME: QuantScheme = QuantScheme { mode: Mode::Affine, bits: 4, group_size: 32 };
    const ROWS: usize = 3;
    const INPUTS: usize = 128;

    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|place| ((place * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0).collect()
    }

    /// Returns the numbers that the definition of the rotation gives for a row of `INPUTS` numbers, before the signs.
    fn by_definition(row: &[f32], block: usize) -> Vec<f32> {
        let of = |place: usize| -> f32 {
            let (start, row_of_block) = (place / block * block, place % block);
            let sign = |column: usize| {
                if (row_of_block & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
            };
            let sum: f32 = (0..block).map(|column| sign(column) * row[start + column]).sum();
            sum / (block as f32).sqrt()
        };
        (0..row.len()).map(of).collect()
    }

    fn assert_close(found: &Array, expected: &[f32]) {
        let found: &[f32] = array::host(found).expect("floats");
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{found} instead of {expected}");
        }
    }

    /// Checks products, rows and floats of a packed matrix with a change, against its rows for unchanged inputs.
    fn check(change: InputChange, restored: impl Fn(&[f32]) -> Vec<f32>) {
        let matrix = Array::from_slice(&numbers(1, ROWS * INPUTS), &[ROWS as i32, INPUTS as i32]);
        let packed = QuantizedMatrix::quantize(&matrix, SCHEME).expect("it can be quantized");
        let plain = packed.dequantize(Dtype::Float32).expect("floats");
        let plain: &[f32] = array::host(&plain).expect("floats");
        let expected: Vec<f32> = plain.chunks(INPUTS).flat_map(restored).collect();
        let packed = packed.with_input_change(Some(change));
        assert_close(&packed.dequantize(Dtype::Float32).expect("floats"), &expected);
        assert_close(&packed.dequantize_on_device(Dtype::Float32).expect("floats"), &expected);
        let row = packed.rows(&Array::from_slice(&[2_u32], &[1]), Dtype::Float32).expect("a row");
        assert_close(&row, &expected[2 * INPUTS..]);
        let input = numbers(2, INPUTS);
        let products = expected.chunks(INPUTS).map(|row| row.iter().zip(&input).map(|(a, b)| a * b).sum());
        let products: Vec<f32> = products.collect();
        let input = Array::from_slice(&input, &[1, INPUTS as i32]);
        assert_close(&packed.multiply(&input).expect("a product"), &products);
    }

    #[test]
    fn a_rotated_matrix_multiplies_rotated_inputs() {
        let _turn = device();
        let signs: Vec<f32> =
            (0..INPUTS).map(|place| if place * place % 7 < 3 { -1.0 } else { 1.0 }).collect();
        for block in [32, 128] {
            check(InputChange::rotation(&signs, block), |row| {
                by_definition(row, block).iter().zip(&signs).map(|(number, sign)| number * sign).collect()
            });
        }
    }

    #[test]
    fn a_reordered_matrix_multiplies_reordered_inputs() {
        let _turn = device();
        let order: Vec<u32> = (0..INPUTS as u32).map(|place| place * 5 % INPUTS as u32).collect();
        check(InputChange::order(&order), |row| {
            let mut restored = vec![0.0; INPUTS];
            order.iter().zip(row).for_each(|(input, number)| restored[*input as usize] = *number);
            restored
        });
    }
}
