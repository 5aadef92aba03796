//! Vision and audio towers in mlx-vlm's form: their matrices stay floats, and the colors of kernels become the last axis. Kernels of audio
//! towers stay unchanged. Invariant: pure.

use std::collections::BTreeMap;

use super::ConvertOptions;
use super::plan::{OutputTensor, plain};
use crate::array::float_dtype;
use crate::weights::Entry;

/// Plans the tensors of a tower.
pub(super) fn plan(tensors: BTreeMap<String, Entry>, options: &ConvertOptions) -> Vec<OutputTensor> {
    tensors.into_iter().map(|(name, entry)| planned(name, entry, options)).collect()
}

fn planned(name: String, entry: Entry, options: &ConvertOptions) -> OutputTensor {
    let shape = entry.shape.clone();
    let colors_last = !name.starts_with("audio_tower.") && is_published_kernel(&entry);
    let shape = if colors_last { [&shape[..1], &shape[2..], &shape[1..2]].concat() } else { shape };
    OutputTensor { is_tower: true, colors_last, ..plain(name, vec![entry], shape, options) }
}

/// Returns true if a tensor of a vision tower is `[outputs, colors, ..., rows, columns]`. A kernel with 3 columns counts as converted, as in
/// loading, and stays unchanged.
fn is_published_kernel(entry: &Entry) -> bool {
    let shape = &entry.shape;
    shape.len() > 3 && shape[1] == 3 && shape.last() != Some(&3) && float_dtype(entry.dtype).is_some()
}
