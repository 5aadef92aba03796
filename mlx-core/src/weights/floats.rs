//! The storage of weights on the device: their float type, and whether halves and packed weights keep their format.

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
    /// 32 bits, except that matrices of halves keep their type: products read them and accumulate in 32 bits.
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
    /// The checkpoint's type if the backend computes in it. Otherwise f32, or mixed if the backend multiplies with halves.
    pub fn of(backend: Backend) -> Self {
        match backend {
            Backend { keep_float_type: true, .. } => Self::Checkpoint,
            Backend { keep_f16_matrices: true, .. } => Self::Mixed,
            _ => Self::F32,
        }
    }

    /// Returns the chosen type; `None` for that of the checkpoint.
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

/// Parts of the names of expert stacks.
const EXPERTS: [&str; 4] = [".experts.", ".switch_mlp.", ".input_linear.", ".output_linear."];

/// Part of the name of the matrix that expands latents to keys and values. Loading splits it by head.
const LATENTS: &str = ".kv_b_proj.";

/// The storage of weights on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPolicy {
    /// The float type.
    pub floats: FloatPolicy,
    /// True if quantized weights stay packed.
    pub keep_packed: bool,
    /// The backend that the model runs on.
    pub backend: Backend,
}

impl WeightPolicy {
    /// Returns the policy for `backend`. Quantized weights stay packed if the backend supports that or `keep_packed` forces it.
    pub fn new(backend: Backend, keep_packed: bool) -> Self {
        let keep_packed = keep_packed || backend.keeps_packed;
        Self { floats: FloatPolicy::of(backend), keep_packed, backend }
    }

    /// Returns the policy for the default device.
    pub fn for_device(keep_packed: bool) -> Result<Self> {
        Ok(Self::new(Backend::detect()?, keep_packed))
    }

    /// Replaces the float type, if one is given.
    #[must_use]
    pub fn with_floats(self, floats: Option<FloatPolicy>) -> Self {
        Self { floats: floats.unwrap_or(self.floats), ..self }
    }

    /// Returns true if the quantized tensor with this name in the files stays packed.
    pub(super) fn keeps_packed(&self, name: &str) -> bool {
        self.keep_packed && !name.contains(LATENTS)
    }

    /// Returns true if a tensor keeps its half type although the model computes in f32. This holds for matrices and stacks of expert
    /// matrices. It excludes the matrix that expands latents, which is not used in a plain product, and the two-dimensional norms of heads.
    pub(super) fn keeps_half(&self, name: &str, dtype: Dtype, shape: &[usize]) -> bool {
        let is_of_products = match shape.len() {
            2 => name.ends_with(".weight") && !name.contains(LATENTS) && !name.ends_with("_norm.weight"),
            3 => EXPERTS.iter().any(|part| name.contains(part)),
            _ => false,
        };
        self.floats == FloatPolicy::Mixed && matches!(dtype, Dtype::F16 | Dtype::BF16) && is_of_products
    }
}
