//! Weights in an npz file: its directory and the header of each tensor, as read without loading weights.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_fuzz::{copy, golden, watch_panics, write};
use tempfile::TempDir;

const FOLDER_NAME: &str = "speech/whisper-q4-npz";
/// The first bytes of a tensor's header, and their number with the length of the text.
const MAGIC: &[u8] = b"\x93NUMPY";
const PREFIX: usize = 10;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| copy(FOLDER_NAME));
static VALID: LazyLock<Valid> = LazyLock::new(Valid::new);

/// A valid file.
struct Valid {
    bytes: Vec<u8>,
    /// The offsets of the headers of its tensors.
    headers: Vec<usize>,
}

impl Valid {
    fn new() -> Self {
        let bytes =
            std::fs::read(golden().join(FOLDER_NAME).join("weights.npz")).expect("the fixture is there");
        let windows = bytes.windows(MAGIC.len()).enumerate();
        let headers = windows.filter(|(_, window)| *window == MAGIC).map(|(at, _)| at).collect();
        Self { bytes, headers }
    }

    /// Returns the file with other headers, each given as the number of its tensor, its text and a zero byte.
    fn with_headers(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for change in data.split(|byte| *byte == 0) {
            let Some((tensor, text)) = change.split_first() else { continue };
            let at = self.headers[usize::from(*tensor) % self.headers.len()];
            let length = usize::from(u16::from_le_bytes([bytes[at + 8], bytes[at + 9]]));
            let header = &mut bytes[at + PREFIX..at + PREFIX + length];
            header.fill(b' ');
            let text = &text[..text.len().min(length)];
            header[..text.len()].copy_from_slice(text);
        }
        bytes
    }

    /// Returns the file with changes of its last 64 KiB, which contain the directory.
    fn with_changes(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for [low, high, change] in data.as_chunks::<3>().0 {
            let place = usize::from(u16::from_le_bytes([*low, *high]));
            let place = bytes.len() - 1 - place;
            bytes[place] ^= change;
        }
        bytes
    }
}

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Some((form, rest)) = data.split_first() else { return };
    let file = match form {
        b'#' => rest.to_vec(),
        b'd' => VALID.with_changes(rest),
        _ => VALID.with_headers(rest),
    };
    write(&FOLDER, "weights.npz", file);
    for keep_quantized in [false, true] {
        let _ = inspect(FOLDER.path(), &EngineOptions { keep_quantized, ..EngineOptions::default() });
    }
});
