//! The reasons why a model cannot take pictures or audio.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The reason why a model cannot take pictures, or audio.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoMedia {
    /// The model has no such tower, or its tower is not supported. A request with such a part is an error of the client.
    Unsupported(String),
    /// The tower, or a file that describes it, is unusable here. A request with such a part is valid.
    Unusable(String),
}

impl NoMedia {
    /// Returns the reason for an error of reading a processor. A request that the error rejects means that the model lacks support.
    pub(super) fn of(error: Error) -> Self {
        match error {
            Error::Request { message, .. } => Self::Unsupported(message),
            other => Self::Unusable(other.to_string()),
        }
    }

    /// Returns the error for a request with pictures.
    pub(crate) fn for_images(&self) -> Error {
        match self {
            Self::Unsupported(why) => Error::request("images", why.as_str()),
            Self::Unusable(why) => Error::Vision(why.clone()),
        }
    }

    /// Returns the error for a request with audio.
    pub(crate) fn for_audio(&self) -> Error {
        match self {
            Self::Unsupported(why) => Error::request("input_audio", why.as_str()),
            Self::Unusable(why) => Error::Hearing(why.clone()),
        }
    }
}

impl fmt::Display for NoMedia {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unsupported(why) | Self::Unusable(why) => out.write_str(why),
        }
    }
}

/// The reasons why the towers of a model cannot be used, if they cannot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoTowers {
    /// The reason for the vision tower.
    pub vision: Option<NoMedia>,
    /// The reason for the audio tower.
    pub audio: Option<NoMedia>,
}

impl NoTowers {
    /// Returns this reason for all towers.
    pub(crate) fn for_all(why: &str) -> Self {
        let why = || Some(NoMedia::Unsupported(why.to_owned()));
        Self { vision: why(), audio: why() }
    }
}
