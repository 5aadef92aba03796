//! Adds the terms of several machines. Invariant: they are added in order, in f32, and rounded once.

use half::{bf16, f16};
use safetensors::Dtype;

/// Returns the sum of terms of equal length in this float type; `None` for other types or lengths.
pub(super) fn sum(dtype: Dtype, parts: &[Vec<u8>]) -> Option<Vec<u8>> {
    match dtype {
        Dtype::F32 => added(parts, f32::from_le_bytes, f32::to_le_bytes),
        Dtype::F16 => added(
            parts,
            |bytes| f16::from_le_bytes(bytes).to_f32(),
            |value| f16::from_f32(value).to_le_bytes(),
        ),
        Dtype::BF16 => added(
            parts,
            |bytes| bf16::from_le_bytes(bytes).to_f32(),
            |value| bf16::from_f32(value).to_le_bytes(),
        ),
        _ => None,
    }
}

fn added<const N: usize>(
    parts: &[Vec<u8>],
    read: impl Fn([u8; N]) -> f32,
    write: impl Fn(f32) -> [u8; N],
) -> Option<Vec<u8>> {
    let (first, others) = parts.split_first()?;
    if !first.len().is_multiple_of(N) || others.iter().any(|other| other.len() != first.len()) {
        return None;
    }
    let mut sums: Vec<f32> = first.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect();
    for other in others {
        for (sum, bytes) in sums.iter_mut().zip(other.as_chunks::<N>().0) {
            *sum += read(*bytes);
        }
    }
    Some(sums.into_iter().flat_map(write).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn parts_are_added_in_their_order() {
        // In another order the small terms would not be lost.
        let parts = [[1e8], [1.0], [1.0], [-1e8]].map(|part| bytes(&part));
        assert_eq!(sum(Dtype::F32, &parts), Some(bytes(&[0.0])));
        let [big, one, other, negative] = parts;
        assert_eq!(sum(Dtype::F32, &[big, negative, one, other]), Some(bytes(&[2.0])));
    }

    #[test]
    fn halves_are_rounded_once() {
        let of = |value: f32| bf16::from_f32(value).to_le_bytes().to_vec();
        // Each half would be lost if every sum were rounded: neighbors of 256 are 2 apart.
        assert_eq!(sum(Dtype::BF16, &[of(256.0), of(0.75), of(0.75)]), Some(of(258.0)));
        let of = |value: f32| f16::from_f32(value).to_le_bytes().to_vec();
        assert_eq!(sum(Dtype::F16, &[of(2048.0), of(0.75), of(0.75)]), Some(of(2050.0)));
    }

    #[test]
    fn parts_of_other_lengths_or_types_have_no_sum() {
        assert_eq!(sum(Dtype::F32, &[bytes(&[1.0]), bytes(&[1.0, 2.0])]), None);
        assert_eq!(sum(Dtype::F32, &[vec![0; 3], vec![0; 3]]), None);
        assert_eq!(sum(Dtype::U32, &[vec![0; 4], vec![0; 4]]), None);
        assert_eq!(sum(Dtype::F32, &[]), None);
    }
}
