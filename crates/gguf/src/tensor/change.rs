//! Changes of floats on the way into the folder.

use half::{bf16, f16};

use super::Dtype;
use crate::placement::Change;

/// Changes each float.
pub(super) fn change_floats(change: Change, dtype: Dtype, bytes: &mut [u8]) {
    let changed = |number: f32| match change {
        Change::Same => number,
        Change::MinusOne => number - 1.0,
        Change::LogOfNegative => (-number).ln(),
    };
    match dtype {
        Dtype::F16 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| {
            *bytes = f16::from_f32(changed(f16::from_le_bytes(*bytes).to_f32())).to_le_bytes();
        }),
        Dtype::BF16 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| {
            *bytes = bf16::from_f32(changed(bf16::from_le_bytes(*bytes).to_f32())).to_le_bytes();
        }),
        _ => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| {
            *bytes = changed(f32::from_le_bytes(*bytes)).to_le_bytes();
        }),
    }
}
