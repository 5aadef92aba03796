//! GGUF files: metadata, the small files made from it, and tensors.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlx_core::ModelFolder;
use mlx_fuzz::{folder, watch_panics, write};
use mlx_gguf::GgufFolder;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(folder);

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    write(&FOLDER, "model.gguf", data);
    let path = FOLDER.path().join("model.gguf");
    let Ok(file) = GgufFolder::open(&path) else { return };
    for name in GgufFolder::SMALL_FILES {
        let _ = file.small_file(name);
    }
    let _ = ModelFolder::open(&path);
    for tensor in file.tensors().into_iter().flatten().take(16) {
        let mut bytes = vec![0; tensor.bytes().min(4096) as usize];
        let _ = tensor.read_at(tensor.bytes().saturating_sub(4096) / 3, &mut bytes);
    }
});
