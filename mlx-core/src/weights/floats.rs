//! How weights are held on the device: the float type, that of the checkpoint or a chosen one, and whether halves and packed ones stay so.

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::error::Result;
use crate::variant_names::impl_variant_names;

/// The float type that a model computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FloatPolicy {
    /// The type of the checkpoint.
    #[serde(rename = "checkpoint")]
    Checkpoint,
    /// 32 bits, but matrices of halves stay as they are in the files: products read them, and sum in 32 bits.
    #[serde(rename = "mixed")]
    Mixed,
    /// 32 bits.
    #[serde(rename = "f32", alias = "float32")]
    F32,
    /// 16 bits, 10 of them mantissa.
    #[serde(rename = "f16", alias = "float16")]
    F16,
    /// 16 bits, 7 of them mantissa, with the range of f32.
    #[serde(rename = "bf16", alias = "bfloat16")]
    Bf16,
}

impl FloatPolicy {
    /// The checkpoint's type where the backend computes in it, else f32, with the checkpoint's matrices where it multiplies with them.
    pub fn of(backend: Backend) -> Self {
        match backend {
            Backend { keeps_floats: true, .. } => Self::Checkpoint,
            Backend { keeps_halves: true, .. } => Self::Mixed,
            _ => Self::F32,
        }
    }

    /// The chosen type; `None` for that of the checkpoint.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Checkpoint => None,
            Self::F32 | Self::Mixed => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::BF16),
        }
    }
}

impl_variant_names!(FloatPolicy, |name| format!(
    "{name:?} is not a float type; use f32, mixed, f16, bf16 or checkpoint"
));

/// Parts of the names of stacks of experts.
const EXPERTS: [&str; 4] = [".experts.", ".switch_mlp.", ".input_linear.", ".output_linear."];

/// A part of the name of the matrix that expands latents of keys and values, which is cut into those of heads at load.
const LATENTS: &str = ".kv_b_proj.";

/// How weights are held on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPolicy {
    /// The float type.
    pub floats: FloatPolicy,
    /// Whether quantized weights stay packed.
    pub keep_packed: bool,
    /// What the model computes with.
    pub backend: Backend,
}

impl WeightPolicy {
    /// The policy for `backend`, which may keep quantized weights packed; `keep_packed` does so in any case.
    pub fn new(backend: Backend, keep_packed: bool) -> Self {
        let keep_packed = keep_packed || backend.keeps_packed;
        Self { floats: FloatPolicy::of(backend), keep_packed, backend }
    }

    /// The policy for the default device.
    pub fn for_device(keep_packed: bool) -> Result<Self> {
        Ok(Self::new(Backend::detect()?, keep_packed))
    }

    /// The same policy with another float type, if one is given.
    #[must_use]
    pub fn with_floats(self, floats: Option<FloatPolicy>) -> Self {
        Self { floats: floats.unwrap_or(self.floats), ..self }
    }

    /// Whether the quantized tensor of this name in the files stays packed.
    pub(super) fn keeps_packed(&self, name: &str) -> bool {
        self.keep_packed && !name.contains(LATENTS)
    }

    /// Whether the tensor of this name in the files, type and shape stays as it is there although the model computes in another type:
    /// matrices, and stacks of those of experts. The matrix of the latents of keys and values is multiplied in another way, and norms of heads
    /// are no matrices of products.
    pub(super) fn keeps_half(&self, name: &str, dtype: Dtype, shape: &[usize]) -> bool {
        let is_of_products = match shape.len() {
            2 => name.ends_with(".weight") && !name.contains(LATENTS) && !name.ends_with("_norm.weight"),
            3 => EXPERTS.iter().any(|part| name.contains(part)),
            _ => false,
        };
        self.floats == FloatPolicy::Mixed && matches!(dtype, Dtype::F16 | Dtype::BF16) && is_of_products
    }
}
