//! The parts of a message's content.

use serde::{Deserialize, Serialize};

use crate::{Audio, Image};

/// A part of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// A picture.
    Image(Image),
    /// A piece of audio.
    Audio(Audio),
}

impl Part {
    /// Returns the text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) | Self::Audio(_) => None,
        }
    }

    /// Returns the picture, if it is one.
    pub fn image(&self) -> Option<&Image> {
        match self {
            Self::Image(image) => Some(image),
            Self::Text(_) | Self::Audio(_) => None,
        }
    }

    /// Returns the audio, if it is some.
    pub fn audio(&self) -> Option<&Audio> {
        match self {
            Self::Audio(audio) => Some(audio),
            Self::Text(_) | Self::Image(_) => None,
        }
    }
}

impl From<Image> for Part {
    fn from(image: Image) -> Self {
        Self::Image(image)
    }
}

impl From<Audio> for Part {
    fn from(audio: Audio) -> Self {
        Self::Audio(audio)
    }
}

/// A part as JSON.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum WirePart {
    Text { text: String },
    Image { image: Image },
    Audio { audio: Audio },
}

impl From<Part> for WirePart {
    fn from(part: Part) -> Self {
        match part {
            Part::Text(text) => Self::Text { text },
            Part::Image(image) => Self::Image { image },
            Part::Audio(audio) => Self::Audio { audio },
        }
    }
}

impl From<WirePart> for Part {
    fn from(part: WirePart) -> Self {
        match part {
            WirePart::Text { text } => Self::Text(text),
            WirePart::Image { image } => Self::Image(image),
            WirePart::Audio { audio } => Self::Audio(audio),
        }
    }
}
