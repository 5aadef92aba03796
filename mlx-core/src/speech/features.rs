//! The features of a window of audio, as a request carries them to its engine, which may run in another process.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Features, frame by frame. Clones share them.
#[derive(Clone, PartialEq)]
pub struct AudioFeatures(Arc<[f32]>);

impl AudioFeatures {
    /// Returns the numbers.
    pub fn values(&self) -> &[f32] {
        &self.0
    }

    /// Returns their bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl From<Vec<f32>> for AudioFeatures {
    fn from(values: Vec<f32>) -> Self {
        Self(values.into())
    }
}

impl fmt::Debug for AudioFeatures {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "AudioFeatures({} numbers)", self.0.len())
    }
}

impl Serialize for AudioFeatures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|value| value.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for AudioFeatures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = AudioFeatures;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("bytes of 32-bit floats")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<AudioFeatures, E> {
                let (numbers, []) = bytes.as_chunks::<4>() else {
                    return Err(E::custom("the length of features is no multiple of 4"));
                };
                Ok(AudioFeatures(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect()))
            }
        }

        let features = deserializer.deserialize_bytes(Bytes)?;
        if !features.0.iter().all(|value| value.is_finite()) {
            return Err(D::Error::custom("a feature is not a finite number"));
        }
        Ok(features)
    }
}
