//! config.json and generation_config.json: any text, or a valid file of any family with other values.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlx_core::ModelFolder;
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_core::model::Architecture;
use mlx_core::quantization::QuantizationConfig;
use mlx_files::Fields;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{copy, fixtures, halves, watch_panics, write};
use tempfile::TempDir;

/// A folder with valid other files.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| copy("llama-f32"));
static CONFIGS: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("config.json")));
static GENERATION: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("generation_config.json")));

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let (config, generation) = halves(data);
    write(&FOLDER, "config.json", CONFIGS.text(config));
    write(&FOLDER, "generation_config.json", GENERATION.text(generation));
    if let Ok(fields) = Fields::read(&FOLDER.path().join("config.json")) {
        let _ = (Architecture::read(&fields), QuantizationConfig::read(&fields));
    }
    let _ = ModelFolder::open(FOLDER.path());
    let _ = inspect(FOLDER.path(), &EngineOptions::default());
});
