//! Totals of the weights of a folder, from the headers of its files.

use std::collections::BTreeMap;

use mlx_files::size;
use safetensors::Dtype;

use super::checkpoint::{Checkpoint, Entry};
use super::floats::{FloatPolicy, WeightPolicy};
use crate::quantization::{INPUT_PARTS, MATRIX_PARTS, QuantScheme, QuantizationConfig};

/// Totals over all weights of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The float type on the device.
    pub dtype: Dtype,
    /// Parameters before quantization; scales and biases do not count.
    pub parameters: u64,
    /// Bytes in the files.
    pub file_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes in the files of weights that are dequantized on the device.
    pub unpacked_bytes: u64,
    /// A hash of the weights in the order of loading; 0 if they were not loaded.
    pub hash: u128,
}

impl Tally {
    /// Creates an empty tally for the files of `checkpoint`, with the float type of `policy`.
    pub(super) fn new(checkpoint: &Checkpoint, policy: FloatPolicy) -> Self {
        let usual = || usual_float_type(checkpoint.entries().values());
        let dtype = policy.dtype().or(checkpoint.float_type()).unwrap_or_else(usual);
        let file_bytes = checkpoint.entries().values().map(|entry| entry.file_bytes).sum();
        Self { dtype, parameters: 0, file_bytes, device_bytes: 0, unpacked_bytes: 0, hash: 0 }
    }

    /// The name of the float type: `f32`, `f16` or `bf16`.
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

    /// Logs when weights take more memory than in the files because of an option, and names that option.
    pub(super) fn log(&self, policy: WeightPolicy) {
        let (files, memory) = (size(self.file_bytes), size(self.device_bytes));
        if self.unpacked_bytes > 0 && !policy.keep_packed {
            tracing::info!(
                files,
                packed = size(self.unpacked_bytes),
                memory,
                "quantized weights are dequantized because dtype is f32; keep_quantized keeps them packed"
            );
        } else if self.device_bytes > self.file_bytes
            && policy.floats == FloatPolicy::F32
            && policy.backend.keep_f16_matrices
        {
            tracing::info!(
                files,
                memory,
                "weights take more memory than in the files; dtype mixed keeps matrices in their file type"
            );
        }
    }
}

/// Returns the float type with the most bytes; on a tie, the last.
pub(super) fn usual_float_type<'e>(entries: impl Iterator<Item = &'e Entry>) -> Dtype {
    let mut candidates = [(Dtype::F32, 0), (Dtype::F16, 0), (Dtype::BF16, 0)];
    for entry in entries {
        if let Some((_, bytes)) = candidates.iter_mut().find(|(dtype, _)| *dtype == entry.dtype) {
            *bytes += entry.length;
        }
    }
    candidates.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(Dtype::F32, |(dtype, _)| dtype)
}

/// The weights of one format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kind {
    /// Tensors; a quantized matrix counts as one, together with its scales and biases.
    pub tensors: u64,
    /// Parameters before quantization.
    pub parameters: u64,
    /// Bytes in the files.
    pub file_bytes: u64,
    /// Bytes on the device.
    pub device_bytes: u64,
}

/// Weights by their format in the files: a float type or a quantization scheme.
pub type Kinds = BTreeMap<String, Kind>;

/// Adds the remaining tensors of `checkpoint` to an empty `tally`. Tensors with names that end with one of `wide` are stored in f32.
pub(super) fn survey(
    checkpoint: &Checkpoint,
    quantization: &QuantizationConfig,
    wide: &[&str],
    policy: WeightPolicy,
    mut tally: Tally,
) -> (Tally, Kinds) {
    let mut kinds = Kinds::new();
    for (name, entry) in checkpoint.entries() {
        let (scheme, found) =
            of_tensor(checkpoint, quantization, wide, policy, tally.float_bytes(), (name, entry));
        let mut label =
            scheme.map_or_else(|| format!("{:?}", entry.dtype).to_lowercase(), |it| it.to_string());
        if let Some(origin) = entry.origin {
            label = format!("{label} (in the files: {origin})");
        }
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
        if scheme.is_some() && !policy.keeps_packed(name) {
            tally.unpacked_bytes += found.file_bytes;
        }
    }
    (tally, kinds)
}

/// Returns the quantization scheme of a tensor, if any, and its contribution. A float takes `float` bytes.
pub(super) fn of_tensor(
    checkpoint: &Checkpoint,
    quantization: &QuantizationConfig,
    wide: &[&str],
    policy: WeightPolicy,
    float: u64,
    (name, entry): (&str, &Entry),
) -> (Option<QuantScheme>, Kind) {
    let (scheme, part) = scheme(checkpoint, quantization, name);
    let float = if wide.iter().any(|end| name.ends_with(end)) { 4 } else { float };
    (scheme, sizes(name, entry, part, scheme, policy, float))
}

/// Returns the quantization scheme of the tensor `name`, if any, and its role in the quantized matrix.
fn scheme<'n>(
    checkpoint: &Checkpoint,
    quantization: &QuantizationConfig,
    name: &'n str,
) -> (Option<QuantScheme>, &'n str) {
    // The format of gpt-oss.
    for (end, other) in [("_blocks", "_scales"), ("_scales", "_blocks")] {
        if let Some(module) = name.strip_suffix(end)
            && checkpoint.has(&format!("{module}{other}"))
        {
            return (Some(QuantScheme::MXFP4), if end == "_blocks" { "blocks" } else { "scales" });
        }
    }
    let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
    let scheme = quantization.of(module, checkpoint.has(&format!("{module}.scales")));
    (scheme.filter(|_| MATRIX_PARTS.contains(&part) || INPUT_PARTS.contains(&part)), part)
}

/// Returns the contribution of one tensor.
fn sizes(
    name: &str,
    entry: &Entry,
    part: &str,
    scheme: Option<QuantScheme>,
    policy: WeightPolicy,
    float: u64,
) -> Kind {
    let elements = entry.shape.iter().product::<usize>() as u64;
    let (file_bytes, length) = (entry.file_bytes, entry.length as u64);
    let Some(scheme) = scheme else {
        let float = if policy.keeps_half(name, entry.dtype, &entry.shape) { 2 } else { float };
        return Kind { tensors: 1, parameters: elements, file_bytes, device_bytes: elements * float };
    };
    if INPUT_PARTS.contains(&part) {
        // Matrices with the same change share it.
        return Kind { tensors: 0, parameters: 0, file_bytes, device_bytes: 0 };
    }
    if part != "weight" && part != "blocks" {
        let as_in_files = policy.floats == FloatPolicy::Mixed
            || !scheme.has_biases()
            || part == "row_scales"
            || entry.is_wide;
        let packed_bytes = if as_in_files { length } else { elements * float };
        let device_bytes = if policy.keeps_packed(name) { packed_bytes } else { 0 };
        return Kind { tensors: 0, parameters: 0, file_bytes, device_bytes };
    }
    // An element of blocks is a byte; an element of other quantized weights is a word.
    let bits = if part == "blocks" { 8 } else { 32 };
    let parameters = elements * bits / scheme.bits as u64;
    let device_bytes = if policy.keeps_packed(name) { length } else { parameters * float };
    Kind { tensors: 1, parameters, file_bytes, device_bytes }
}
