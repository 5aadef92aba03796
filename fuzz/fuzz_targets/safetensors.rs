//! The headers of safetensors files and the index of shards, as read without loading weights.
#![no_main]

use std::fs::File;
use std::io::Write;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_files::weight_files::INDEX;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{copy, fixtures, halves, watch_panics, write};
use serde_json::Value;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| copy("models/llama-q4-f16"));
static INDICES: LazyLock<Documents> = LazyLock::new(|| {
    let single = r#"{"weight_map": {"lm_head.weight": "model.safetensors", "model.norm.weight": "other.safetensors"}}"#;
    Documents::new(fixtures(INDEX).into_iter().chain([single.into()]))
});
static HEADERS: LazyLock<Documents> = LazyLock::new(|| {
    let files = fixtures("model.safetensors");
    Documents::new(files.iter().map(|file| {
        let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
        &file[8..8 + length]
    }))
});

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let (header, index) = match data.split_first() {
        // A whole file, byte by byte.
        Some((b'#', file)) => {
            write(&FOLDER, "model.safetensors", file);
            std::fs::remove_file(FOLDER.path().join(INDEX)).ok();
            let _ = inspect(FOLDER.path(), &EngineOptions::default());
            return;
        }
        _ => halves(data),
    };
    let header = HEADERS.text(header);
    let mut file = File::create(FOLDER.path().join("model.safetensors")).expect("it can be written");
    file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&header)).expect("there is room");
    // Extends the file with sparse zeros to the length in the header. A wrong length would hide all later checks.
    file.set_len((8 + header.len()) as u64 + claimed(&header)).ok();
    if index.is_empty() {
        std::fs::remove_file(FOLDER.path().join(INDEX)).ok();
    } else {
        write(&FOLDER, INDEX, INDICES.text(index));
    }
    for keep_quantized in [false, true] {
        let _ = inspect(FOLDER.path(), &EngineOptions { keep_quantized, ..EngineOptions::default() });
    }
});

/// Returns the end of the last tensor in a header.
fn claimed(header: &[u8]) -> u64 {
    let header: Value = serde_json::from_slice(header).unwrap_or_default();
    let tensors = header.as_object().into_iter().flatten();
    tensors.filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64()).max().unwrap_or(0).min(1 << 40)
}
