//! What the weights of a folder come to, from the headers of its files alone.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::checkpoint::{Checkpoint, Entry};
use super::{FloatPolicy, WeightPolicy};
use crate::human_bytes::size;
use crate::quantization::{QuantScheme, QuantizationConfig};

/// The sums over all weights of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The float type on the device.
    pub dtype: Dtype,
    /// Numbers, as they are before packing; scales are none of them.
    pub parameters: u64,
    /// Bytes in the files.
    pub file_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes in the files of weights that are packed there and not on the device.
    pub unpacked_bytes: u64,
    /// A hash of the weights, in the order in which they were read; 0 where they were not.
    pub hash: u128,
}

impl Tally {
    /// Nothing but the files of `checkpoint`, whose floats become what `policy` says.
    pub(super) fn new(checkpoint: &Checkpoint, policy: FloatPolicy) -> Self {
        let bytes_of = |dtype| -> usize {
            let same = checkpoint.entries().values().filter(|entry| entry.dtype == dtype);
            same.map(|entry| entry.length).sum()
        };
        let dtype = policy.dtype().unwrap_or_else(|| {
            // The most used; of those that are used alike, the last.
            let candidates = [Dtype::F32, Dtype::F16, Dtype::BF16];
            candidates.into_iter().max_by_key(|&dtype| bytes_of(dtype)).unwrap_or(Dtype::F32)
        });
        let file_bytes = checkpoint.entries().values().map(|entry| entry.length as u64).sum();
        Self { dtype, parameters: 0, file_bytes, device_bytes: 0, unpacked_bytes: 0, hash: 0 }
    }

    /// What the float type is called: `f32`, `f16` or `bf16`.
    pub fn label(&self) -> &'static str {
        match self.dtype {
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            _ => "f32",
        }
    }

    /// Bytes of a float on the device.
    pub fn float_bytes(&self) -> u64 {
        if self.dtype == Dtype::F32 { 4 } else { 2 }
    }

    /// Says what it costs that weights are not held as they are in the files.
    pub(super) fn log(&self) {
        let (files, memory) = (size(self.file_bytes), size(self.device_bytes));
        if self.unpacked_bytes > 0 {
            tracing::info!(
                files,
                packed = size(self.unpacked_bytes),
                memory,
                "quantized weights become floats on this backend, where products with packed ones are slow; \
                 --keep-quantized keeps them as small as they are"
            );
        } else if self.device_bytes > self.file_bytes {
            tracing::info!(
                files,
                memory,
                "weights become f32, which is a CPU's fastest type and this device's unless --dtype chooses another"
            );
        }
    }
}

/// Weights of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kind {
    /// Tensors; a packed one counts with its scales and biases as one.
    pub tensors: u64,
    /// Numbers before packing.
    pub parameters: u64,
    /// Bytes in the files.
    pub file_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
}

/// Weights by what they are in the files: a float type, or how they are packed.
pub type Kinds = BTreeMap<String, Kind>;

/// Adds up what `checkpoint` still holds, to a `tally` of nothing.
pub(super) fn survey(
    checkpoint: &Checkpoint,
    recipe: &QuantizationConfig,
    policy: WeightPolicy,
    mut tally: Tally,
) -> (Tally, Kinds) {
    let mut kinds = Kinds::new();
    for (name, entry) in checkpoint.entries() {
        let (packing, part) = packing(checkpoint, recipe, name);
        let label = packing.map_or_else(|| format!("{:?}", entry.dtype).to_lowercase(), |it| it.to_string());
        let found = sizes(entry, part, packing, policy, tally.float_bytes());
        let kind = kinds.entry(label).or_default();
        for (sum, add) in [
            (&mut kind.tensors, found.tensors),
            (&mut kind.parameters, found.parameters),
            (&mut kind.file_bytes, found.file_bytes),
            (&mut kind.device_bytes, found.device_bytes),
            (&mut tally.parameters, found.parameters),
            (&mut tally.device_bytes, found.device_bytes),
        ] {
            *sum += add;
        }
        if packing.is_some() && !policy.keep_packed {
            tally.unpacked_bytes += found.file_bytes;
        }
    }
    (tally, kinds)
}

/// How the tensor `name` is packed, if it is, and which part of its matrix it is.
fn packing<'n>(
    checkpoint: &Checkpoint,
    recipe: &QuantizationConfig,
    name: &'n str,
) -> (Option<QuantScheme>, &'n str) {
    // gpt-oss as it was published.
    for (end, other) in [("_blocks", "_scales"), ("_scales", "_blocks")] {
        if let Some(module) = name.strip_suffix(end)
            && checkpoint.has(&format!("{module}{other}"))
        {
            return (Some(QuantScheme::MXFP4), if end == "_blocks" { "blocks" } else { "scales" });
        }
    }
    let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
    let packing = recipe.of(module, checkpoint.has(&format!("{module}.scales")));
    (packing.filter(|_| ["weight", "scales", "biases"].contains(&part)), part)
}

/// What one tensor adds.
fn sizes(entry: &Entry, part: &str, packing: Option<QuantScheme>, policy: WeightPolicy, float: u64) -> Kind {
    let elements = entry.shape.iter().product::<usize>() as u64;
    let file_bytes = entry.length as u64;
    let Some(packing) = packing else {
        return Kind { tensors: 1, parameters: elements, file_bytes, device_bytes: elements * float };
    };
    if part != "weight" && part != "blocks" {
        let kept = if packing.has_biases() { elements * float } else { file_bytes };
        let device_bytes = if policy.keep_packed { kept } else { 0 };
        return Kind { tensors: 0, parameters: 0, file_bytes, device_bytes };
    }
    // Blocks are counted by bytes, other packed weights by words.
    let bits = if part == "blocks" { 8 } else { 32 };
    let parameters = elements * bits / packing.bits as u64;
    let device_bytes = if policy.keep_packed { file_bytes } else { parameters * float };
    Kind { tensors: 1, parameters, file_bytes, device_bytes }
}
