//! The float type of a model on the device: the checkpoint's own, or one that was asked for.

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

use crate::array::on_gpu;
use crate::error::Result;

/// Which float type a model computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FloatPolicy {
    /// The checkpoint's own.
    #[serde(rename = "checkpoint")]
    Checkpoint,
    /// 32 bits.
    #[serde(rename = "f32", alias = "float32")]
    F32,
    /// 16 bits, of which 10 are digits.
    #[serde(rename = "f16", alias = "float16")]
    F16,
    /// 16 bits, of which 7 are digits, with the range of f32.
    #[serde(rename = "bf16", alias = "bfloat16")]
    Bf16,
}

impl FloatPolicy {
    /// The right policy for the default device: a GPU keeps the checkpoint's type; a CPU, where MLX has no fast kernels for halves,
    /// computes in f32.
    pub fn for_device() -> Result<Self> {
        Ok(if on_gpu()? { Self::Checkpoint } else { Self::F32 })
    }

    /// The type, unless it is the checkpoint's.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Checkpoint => None,
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::BF16),
        }
    }
}

impl FromStr for FloatPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = StrDeserializer::<ValueError>::new(text);
        Self::deserialize(name)
            .map_err(|_| format!("{text:?} is no type; there are f32, f16, bf16 and checkpoint"))
    }
}

impl fmt::Display for FloatPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}
