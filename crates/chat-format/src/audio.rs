//! Audio in messages, as files.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::image::decoded;

/// An audio file in a message. It is decoded only when a model needs it. Clones share its bytes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Audio {
    bytes: Arc<[u8]>,
    hash: [u8; 32],
}

impl Audio {
    /// The maximum size of a file in bytes: half a minute of many channels.
    pub const LARGEST_FILE: usize = 64 << 20;

    /// Returns the audio of a file: wav, flac, mp3, m4a or mp4 with aac, or ogg or webm with vorbis or opus.
    pub fn file(bytes: Vec<u8>) -> Self {
        let hash = mlx_image::sha256(&bytes);
        Self { bytes: bytes.into(), hash }
    }

    /// Returns true if bytes begin like a file of a supported format.
    pub fn is_file(bytes: &[u8]) -> bool {
        let has = |at: usize, marker: &[u8]| bytes.get(at..at + marker.len()) == Some(marker);
        let is_tagged = has(0, b"ID3") && matches!(bytes.get(3), Some(2..=4));
        // The first frame of MP3 or of AAC without a container.
        let is_frame = matches!(bytes, [0xff, 0xe2..=0xe7 | 0xf1..=0xf3 | 0xf9..=0xfb, ..]);
        let is_wave = has(0, b"RIFF") && has(8, b"WAVE");
        is_wave
            || has(0, b"fLaC")
            || has(0, b"OggS\0")
            || has(0, b"\x1a\x45\xdf\xa3")
            || has(4, b"ftyp")
            || is_tagged
            || is_frame
    }

    /// Decodes a file from base64, for [`Self::file`]. Line breaks and missing padding are accepted.
    ///
    /// # Errors
    /// Returns the reason if the text is empty or not base64.
    pub fn from_base64(text: &str) -> Result<Self, String> {
        match decoded(text) {
            Ok(bytes) if bytes.is_empty() => Err("is empty; give the bytes of an audio file".to_owned()),
            Ok(bytes) => Ok(Self::file(bytes)),
            Err(error) => Err(format!("is not base64: {error}")),
        }
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the SHA-256 of the file.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

impl PartialEq for Audio {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Audio {}

impl fmt::Debug for Audio {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "Audio({} bytes)", self.bytes.len())
    }
}

/// Audio in a saved conversation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    /// The file in base64.
    file: String,
}

impl From<Audio> for Wire {
    fn from(audio: Audio) -> Self {
        Self { file: STANDARD.encode(&audio.bytes) }
    }
}

impl TryFrom<Wire> for Audio {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self, Error> {
        Self::from_base64(&wire.file).map_err(|why| Error::request("file", why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_saved_as_it_is() {
        let audio = Audio::file(vec![1, 2, 3]);
        let saved = serde_json::to_value(&audio).expect("it has a form");
        assert_eq!(saved, serde_json::json!({"file": "AQID"}));
        assert_eq!(serde_json::from_value::<Audio>(saved).expect("it was written"), audio);
        for wrong in ["{\"file\": \"?\"}", "{\"file\": \"\"}", "{}"] {
            assert!(serde_json::from_str::<Audio>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_told_from_texts() {
        for file in [
            &b"RIFF\x24\0\0\0WAVEfmt "[..],
            b"fLaC\0\0\0\x22",
            b"OggS\0\x02",
            b"\x1a\x45\xdf\xa3\x9f",
            b"\0\0\0\x1cftypM4A ",
            b"ID3\x04\0",
            b"\xff\xfb\x90",
            b"\xff\xf1\x50",
        ] {
            assert!(Audio::is_file(file), "{file:?}");
        }
        for other in
            [&b""[..], b"RIFF\0\0\0\0WEBPVP8 ", b"ID3 tags", b"OggS is a container", b"\xff\xfe", b"text"]
        {
            assert!(!Audio::is_file(other), "{other:?}");
        }
    }
}
