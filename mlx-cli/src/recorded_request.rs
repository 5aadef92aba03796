//! The request record of `mlx generate --json`, from which `mlx replay` repeats the request.

use std::path::{Path, PathBuf};

use chat_format::{Audio, Image};
use mlx_core::engine::{Engine, RequestOptions};
use mlx_core::sampling::settings;
use mlx_core::{ModelFolder, Result};
use mlx_options::Profile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::request_args::inlined;
use crate::sampling_values;

/// The field `request` of a record. Scripts rely on it: fields may be added, never changed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedRequest {
    /// The folder of the model.
    pub(crate) model: String,
    /// A hash of the model's weights and configuration.
    fingerprint: String,
    pub(crate) prompt_ids: Vec<u32>,
    #[serde(flatten)]
    pub(crate) files: FileHashes,
    /// True if the model answered a chat.
    pub(crate) is_message: bool,
    /// The words of the command line after `generate`. `@FILE` is replaced by the file's text.
    pub(crate) arguments: Vec<String>,
    /// The profile, since its file may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
    /// Every numeric sampling parameter, from any source. Records of older versions have none.
    #[serde(default)]
    pub(crate) sampling: Map<String, Value>,
}

/// The SHA-256 of the files of a request, as hexadecimal digits.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileHashes {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) images: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) audio: Vec<String>,
}

impl FileHashes {
    /// Returns the hashes of these files.
    pub(crate) fn of(images: &[Image], audio: &[Audio]) -> Self {
        let images = images.iter().map(|image| hex(image.hash())).collect();
        Self { images, audio: audio.iter().map(|audio| hex(audio.hash())).collect() }
    }
}

/// Returns the absolute path of a model. Links to folders are followed; the name of a GGUF file matters, so links to files are not.
fn absolute(path: &Path) -> PathBuf {
    let found = if path.is_file() { std::path::absolute(path) } else { path.canonicalize() };
    found.unwrap_or_else(|_| path.to_path_buf())
}

impl RecordedRequest {
    /// Records a request of this process.
    pub(crate) fn new(
        engine: &Engine,
        prompt: &[u32],
        files: FileHashes,
        is_message: bool,
        (options, profile): (&RequestOptions, Option<Profile>),
    ) -> Result<Self> {
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let mut words = words.skip_while(|word| word == "-v" || word == "--verbose").peekable();
        // `generate` is the default command and may be omitted.
        words.next_if(|word| word == "generate");
        let ModelFolder { path, sampling, .. } = engine.folder();
        let settings = settings(&options.sampling, sampling, options.sampling_defaults)?;
        Ok(Self {
            model: absolute(path).to_string_lossy().into_owned(),
            fingerprint: fingerprint(engine),
            prompt_ids: prompt.to_vec(),
            files,
            is_message,
            arguments: inlined(words),
            profile,
            sampling: sampling_values::to_json(settings),
        })
    }

    /// Returns true if it was recorded with the model of this engine.
    pub(crate) fn matches_model(&self, engine: &Engine) -> bool {
        self.fingerprint == fingerprint(engine)
    }
}

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn fingerprint(engine: &Engine) -> String {
    format!("{:032x}", engine.spec().fingerprint)
}
