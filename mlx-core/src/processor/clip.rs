//! Audio clips in the form that a model needs: frames of numbers, as a request carries them to its engine.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::config::Fields;
use crate::error::Result;
use crate::speech::AudioFeatures;

/// The frames of a clip. Clones share them.
#[derive(Clone)]
pub struct AudioClip {
    /// The numbers in a frame.
    width: usize,
    /// The numbers, frame by frame.
    features: AudioFeatures,
    hash: [u8; 32],
}

impl AudioClip {
    /// Creates a clip from the numbers of its frames, `width` each. Incomplete frames are dropped.
    pub fn new(width: usize, values: Vec<f32>) -> Self {
        Self::of(width, values.into())
    }

    fn of(width: usize, features: AudioFeatures) -> Self {
        let mut hasher = Sha256::new();
        // No picture has this hash, since the bytes of a picture begin with its size.
        hasher.update(b"audio");
        hasher.update(width.to_le_bytes());
        hasher.update(bytemuck::cast_slice::<f32, u8>(features.values()));
        Self { width, features, hash: hasher.finalize().into() }
    }

    /// Returns the numbers in a frame.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> usize {
        self.features.values().len().checked_div(self.width).unwrap_or(0)
    }

    /// Returns the numbers, frame by frame.
    pub fn values(&self) -> &[f32] {
        &self.features.values()[..self.frames() * self.width]
    }

    /// Returns the bytes of the numbers in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.features.bytes()
    }

    /// Returns the SHA-256 of the width and the numbers.
    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

impl PartialEq for AudioClip {
    fn eq(&self, other: &Self) -> bool {
        self.width == other.width && self.hash == other.hash
    }
}

impl Eq for AudioClip {}

impl fmt::Debug for AudioClip {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} frames of {}", self.frames(), self.width)
    }
}

impl Serialize for AudioClip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.width, &self.features).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AudioClip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (width, features) = Deserialize::deserialize(deserializer)?;
        Ok(Self::of(width, features))
    }
}

/// The frames that a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClipFrames {
    /// Log-mel features of Gemma. Four frames become a row.
    LogMel { bins: usize },
    /// Log-mel features of Qwen3-ASR, in chunks of [`CHUNK_FRAMES`]. Eight frames of a chunk become a row.
    ChunkedMel { bins: usize },
    /// Samples. Each frame becomes a row.
    Samples { count: usize },
}

/// The frames of a chunk of Qwen3-ASR: a second.
pub(crate) const CHUNK_FRAMES: usize = 100;

/// The maximum of numbers in a frame.
const WIDEST: usize = 1 << 14;

impl ClipFrames {
    /// Returns the frames of a model with `model_type` `family` and this `audio_config`; `None` if its audio is not supported yet.
    pub(crate) fn of(family: &str, audio: &Fields) -> Result<Option<Self>> {
        let within = |key: &str, count: f64| {
            if (1.0..=WIDEST as f64).contains(&count) {
                return Ok(count as usize);
            }
            Err(audio.error(key, format_args!("is {count}; it must be from 1 to {WIDEST}")))
        };
        Ok(match family {
            // The tower has as many channels after its first convolution as there are bins.
            "gemma4" => {
                let key = "subsampling_conv_channels";
                let channels = audio.numbers(key)?;
                Some(Self::LogMel { bins: within(key, channels.first().copied().unwrap_or(128.0))? })
            }
            "gemma4_unified" => {
                let key = "audio_embed_dim";
                let count = audio.optional_size(key)?.unwrap_or(640);
                Some(Self::Samples { count: within(key, count as f64)? })
            }
            "qwen3_asr" => {
                let key = "num_mel_bins";
                let bins = audio.optional_size(key)?.unwrap_or(128);
                Some(Self::ChunkedMel { bins: within(key, bins as f64)? })
            }
            _ => None,
        })
    }

    /// Returns the numbers in a frame.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::LogMel { bins } | Self::ChunkedMel { bins } => bins,
            Self::Samples { count } => count,
        }
    }

    /// Returns the rows of a clip with this many frames.
    pub(crate) fn rows(self, frames: usize) -> usize {
        match self {
            Self::LogMel { .. } => frames.div_ceil(2).div_ceil(2),
            Self::ChunkedMel { .. } => {
                let of_chunk = |frames: usize| frames.div_ceil(2).div_ceil(2).div_ceil(2);
                frames / CHUNK_FRAMES * of_chunk(CHUNK_FRAMES) + of_chunk(frames % CHUNK_FRAMES)
            }
            Self::Samples { .. } => frames,
        }
    }
}
