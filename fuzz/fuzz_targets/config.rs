//! config.json, generation_config.json and processor_config.json: any text, or a valid file of any family with other values.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlx_core::ModelFolder;
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_core::model::{Architecture, inspect_towers};
use mlx_core::quantization::QuantizationConfig;
use mlx_files::Fields;
use mlx_fuzz::json::Documents;
use mlx_fuzz::{copy, fixtures, halves, watch_panics, write};
use tempfile::TempDir;

/// Folders with valid other files, for a config with this word. Only they have the tensors of an audio tower.
static FOLDERS: LazyLock<Vec<(&[u8], TempDir)>> = LazyLock::new(|| {
    let folders: [(&[u8], &str); 5] = [
        (b"\"qwen3_asr\"", "input_audio/qwen3_asr-f32"),
        (b"\"gemma4_unified\"", "input_audio/gemma4_unified-f32"),
        (b"\"gemma4\"", "input_audio/gemma4-f32"),
        (b"\"whisper\"", "speech/whisper-f32"),
        (b"", "models/llama-f32"),
    ];
    folders.map(|(word, name)| (word, copy(name))).into()
});
static CONFIGS: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("config.json")));
static GENERATION: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("generation_config.json")));
static PROCESSORS: LazyLock<Documents> = LazyLock::new(|| Documents::new(fixtures("processor_config.json")));

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let (config, others) = halves(data);
    let (generation, processor) = halves(others);
    let config = CONFIGS.text(config);
    let has = |word: &[u8]| word.is_empty() || config.windows(word.len()).any(|window| window == word);
    let (_, folder) = FOLDERS.iter().find(|(word, _)| has(word)).expect("the last word is empty");
    write(folder, "config.json", &config);
    write(folder, "generation_config.json", GENERATION.text(generation));
    write(folder, "processor_config.json", PROCESSORS.text(processor));
    if let Ok(fields) = Fields::read(&folder.path().join("config.json")) {
        let _ = (Architecture::read(&fields), QuantizationConfig::read(&fields));
    }
    let options = EngineOptions::default();
    let _ = ModelFolder::open(folder.path());
    let _ = options.weights().map(|policy| inspect_towers(folder.path(), policy));
    let _ = inspect(folder.path(), &options);
});
