//! The float type of a model on the device: that of the checkpoint, or a chosen one.

use std::fmt;
use std::str::FromStr;

use safetensors::Dtype;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;

/// The float type that a model computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FloatPolicy {
    /// The type of the checkpoint.
    #[serde(rename = "checkpoint")]
    Checkpoint,
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
    /// The checkpoint's type where the backend keeps it, else f32.
    pub fn of(backend: Backend) -> Self {
        if backend.keeps_floats { Self::Checkpoint } else { Self::F32 }
    }

    /// The chosen type; `None` for that of the checkpoint.
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
            .map_err(|_| format!("{text:?} is not a float type; use f32, f16, bf16 or checkpoint"))
    }
}

impl fmt::Display for FloatPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}
