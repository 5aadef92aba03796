//! How a model is divided among machines.

use std::fmt;
use std::str::FromStr;

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// How a model is divided among machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallel {
    /// Each has some layers.
    #[default]
    Pipeline,
    /// Each has a part of every layer.
    Tensor,
}

impl FromStr for Parallel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::deserialize(StrDeserializer::<ValueError>::new(text))
            .map_err(|_| format!("{text:?} is no way to divide a model; use pipeline or tensor"))
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}
