//! A picture or an audio clip of a prompt.

use chat_format::Pixels;

use crate::processor::AudioClip;

/// An item whose rows a tower computes.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Medium {
    Picture(Pixels),
    Clip(AudioClip),
}

impl Medium {
    pub(super) fn picture(&self) -> Option<&Pixels> {
        match self {
            Self::Picture(pixels) => Some(pixels),
            Self::Clip(_) => None,
        }
    }

    pub(super) fn clip(&self) -> Option<&AudioClip> {
        match self {
            Self::Picture(_) => None,
            Self::Clip(clip) => Some(clip),
        }
    }

    /// Returns the bytes of its pixels or frames.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Picture(pixels) => pixels.rgb().len(),
            Self::Clip(clip) => clip.bytes(),
        }
    }

    /// Returns the SHA-256 hash of its content.
    pub(super) fn hash(&self) -> &[u8; 32] {
        match self {
            Self::Picture(pixels) => pixels.hash(),
            Self::Clip(clip) => clip.hash(),
        }
    }
}
