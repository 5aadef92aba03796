//! Saved layers of a state in messages: their types and shapes in the header, their bytes in the payload.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::frame::MAX_PAYLOAD;
use crate::cache::SavedLayer;

/// The type and the shape of an array in the payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedArray {
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Returns the header and the payload of the arrays of each layer. `None` if they are too large for a message.
pub(super) fn packed<'a>(
    layers: impl IntoIterator<Item = &'a [SavedLayer]>,
) -> Option<(Vec<Vec<SavedArray>>, Vec<u8>)> {
    let (mut header, mut payload) = (Vec::new(), Vec::new());
    for layer in layers {
        let array = |it: &SavedLayer| SavedArray { dtype: it.dtype, shape: it.shape.clone() };
        header.push(layer.iter().map(array).collect());
        if payload.len() + layer.iter().map(|it| it.bytes.len()).sum::<usize>() > MAX_PAYLOAD {
            return None;
        }
        for array in layer {
            payload.extend(&array.bytes);
        }
    }
    Some((header, payload))
}

/// Returns the arrays of each layer. `None` if the header does not fit the payload.
pub(super) fn unpacked(header: &[Vec<SavedArray>], payload: &[u8]) -> Option<Vec<Vec<SavedLayer>>> {
    let mut rest = payload;
    let mut array = |about: &SavedArray| {
        let count = about.shape.iter().try_fold(1_usize, |count, side| count.checked_mul(*side))?;
        let (bytes, after) = rest.split_at_checked(count.checked_mul(about.dtype.bitsize())? / 8)?;
        rest = after;
        Some(SavedLayer { dtype: about.dtype, shape: about.shape.clone(), bytes: bytes.to_vec() })
    };
    let layers = header.iter().map(|layer| layer.iter().map(&mut array).collect()).collect::<Option<_>>()?;
    rest.is_empty().then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_the_same_after_the_journey_and_damaged_ones_are_refused() {
        let layer = |shape: &[usize], bytes: &[u8]| SavedLayer {
            dtype: Dtype::F16,
            shape: shape.to_vec(),
            bytes: bytes.to_vec(),
        };
        let layers = vec![vec![layer(&[1, 2], &[1, 2, 3, 4])], vec![layer(&[1], &[5, 6]), layer(&[0], &[])]];
        let (header, payload) = packed(layers.iter().map(Vec::as_slice)).expect("they are small");
        assert_eq!(unpacked(&header, &payload), Some(layers));
        assert_eq!(unpacked(&header, &payload[1..]), None);
        assert_eq!(unpacked(&header[1..], &payload), None);
        let huge = vec![vec![SavedArray { dtype: Dtype::F16, shape: vec![usize::MAX, 2] }]];
        assert_eq!(unpacked(&huge, &payload), None);
        let long = [layer(&[1], &vec![0; MAX_PAYLOAD + 2])];
        assert_eq!(packed([long.as_slice()]), None);
    }
}
