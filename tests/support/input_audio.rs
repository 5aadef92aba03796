//! Tiny checkpoints that hear, transformers' results for prompts with audio, and questions about clips.

use std::path::{Path, PathBuf};

use chat_format::{Audio, Image, Message, Part};
use mlx_core::backend::Backend;
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::model::AudioTower;
use mlx_core::weights::WeightPolicy;
use serde_json::Value;

use crate::{Dice, golden_folder, pictures, tensors};

/// The checkpoints: with a tower, without one, and a speech recognizer.
pub const MODELS: [&str; 3] = ["gemma4-f32", "gemma4_unified-f32", "qwen3_asr-f32"];

/// Returns the folder of a checkpoint.
pub fn folder(name: &str) -> PathBuf {
    golden_folder().join("input_audio").join(name)
}

/// Returns the bytes of a fixture's clip or picture.
///
/// # Panics
/// If the fixture is missing.
pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden_folder().join("input_audio").join(name)).expect("the fixture is there")
}

/// Loads the tower of a checkpoint.
///
/// # Panics
/// If it does not load.
pub fn load(name: &str) -> AudioTower {
    AudioTower::load(&folder(name), WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).expect("it loads")
}

/// Writes a checkpoint with the names of MLX's tools, and kernels with the channels last.
///
/// # Panics
/// If the fixture is missing, or the files cannot be written.
pub fn copy_as_mlx(name: &str, target: &Path) {
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "processor_config.json"] {
        std::fs::copy(folder(name).join(file), target.join(file)).expect("a copy");
    }
    let tensors = tensors::read(&folder(name).join("model.safetensors"));
    let renamed = tensors.into_iter().map(|(name, (dtype, shape, bytes))| {
        let is_kernel = name.contains("conv") && shape.len() > 2;
        let (shape, bytes) = if is_kernel { last(&shape, &bytes) } else { (shape, bytes) };
        (name.strip_prefix("model.").unwrap_or(&name).to_owned(), (dtype, shape, bytes))
    });
    tensors::write(&target.join("model.safetensors"), &renamed.collect());
}

/// Writes the speech recognizer as it was first published: a section has most of config.json, tensors have other names, after `beginning`, and
/// there is no tokenizer.json.
///
/// # Panics
/// If the fixture is missing, or the files cannot be written.
pub fn copy_as_first_published(beginning: &str, target: &Path) {
    let source = folder("qwen3_asr-f32");
    std::fs::copy(source.join("generation_config.json"), target.join("generation_config.json"))
        .expect("a copy");
    spell_tokenizer(&source, target);
    let config = std::fs::read_to_string(source.join("config.json")).expect("a config");
    let nested = format!("{{\"model_type\": \"qwen3_asr\", \"thinker_config\": {config}}}");
    std::fs::write(target.join("config.json"), nested).expect("a config");
    let tensors = tensors::read(&source.join("model.safetensors"));
    let renamed = tensors.into_iter().map(|(name, tensor)| {
        let name = name
            .replacen("model.language_model.", "model.", 1)
            .replacen("model.audio_tower.", "audio_tower.", 1)
            .replacen("model.multi_modal_projector.linear_", "audio_tower.proj", 1);
        (format!("{beginning}{name}"), tensor)
    });
    tensors::write(&target.join("model.safetensors"), &renamed.collect());
}

/// Writes tokenizer.json as vocab.json, merges.txt and the added tokens of `tokenizer_config.json`.
fn spell_tokenizer(source: &Path, copy: &Path) {
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(source.join(name)).expect("a file")).expect("json")
    };
    let (tokenizer, mut config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let merges = tokenizer["model"]["merges"].as_array().expect("merges").iter();
    let merges: Vec<String> = merges
        .map(|pair| format!("{} {}\n", pair[0].as_str().expect("text"), pair[1].as_str().expect("text")))
        .collect();
    let added = tokenizer["added_tokens"].as_array().expect("tokens").iter();
    config["tokenizer_class"] = "Qwen2Tokenizer".into();
    config["added_tokens_decoder"] =
        added.map(|token| (token["id"].to_string(), token.clone())).collect::<serde_json::Map<_, _>>().into();
    let write = |name: &str, text: &str| std::fs::write(copy.join(name), text).expect("writes");
    write("vocab.json", &tokenizer["model"]["vocab"].to_string());
    write("merges.txt", &merges.concat());
    write("tokenizer_config.json", &config.to_string());
}

/// Returns the f32 bytes with the second axis moved to the end.
fn last(shape: &[usize], bytes: &[u8]) -> (Vec<usize>, Vec<u8>) {
    let (outer, channels, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
    let places = (0..outer)
        .flat_map(|row| (0..inner).flat_map(move |at| (0..channels).map(move |channel| (row, channel, at))));
    let starts = places.map(|(row, channel, at)| 4 * ((row * channels + channel) * inner + at));
    let moved = starts.flat_map(|start| bytes[start..start + 4].to_vec()).collect();
    ([&shape[..1], &shape[2..], &[channels]].concat(), moved)
}

/// Starts an engine on a checkpoint.
///
/// # Panics
/// If it does not load.
pub fn start(name: &str, options: &EngineOptions) -> Engine {
    pictures::start_from(&folder(name), options)
}

/// transformers' results for prompts with audio and pictures.
pub struct Golden {
    /// The lengths of the clips in samples, which name their files and features.
    pub lengths: Vec<usize>,
    /// Conversations, with their tokens.
    pub cases: Vec<Value>,
}

/// Returns transformers' results for this checkpoint.
///
/// # Panics
/// If the fixture is missing.
pub fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(folder(name).join("cases.json")).expect("the fixture has cases");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    Golden {
        lengths: pictures::numbers(&value["lengths"]),
        cases: value["cases"].as_array().expect("cases").clone(),
    }
}

impl Golden {
    /// Returns the name of the file of the clip at this index.
    ///
    /// # Panics
    /// If there is no such clip.
    pub fn file_name(&self, clip: &Value) -> String {
        format!("{}.wav", self.lengths[clip.as_u64().expect("an index") as usize])
    }

    /// Returns the messages of a case.
    ///
    /// # Panics
    /// If the fixture has another format.
    pub fn messages(&self, case: &Value) -> Vec<Message> {
        let part = |part: &Value| match part["type"].as_str() {
            Some("audio") => Part::Audio(Audio::file(file(&self.file_name(&part["audio"])))),
            Some("image") => Part::Image(Image::file(file("picture.png"))),
            _ => Part::Text(part["text"].as_str().expect("a text").to_owned()),
        };
        let message = |message: &Value| match &message["content"] {
            Value::String(text) if message["role"] == "user" => Message::user(text),
            Value::String(text) => Message::assistant(text),
            parts => {
                let parts = parts.as_array().expect("parts").iter().map(part).collect();
                Message { parts, ..Message::user("") }
            }
        };
        case["messages"].as_array().expect("messages").iter().map(message).collect()
    }
}

/// Returns the prompt of a question about some clips.
pub fn question(engine: &Engine, clips: &[&Audio], text: &str) -> ChatPrompt {
    let parts = clips.iter().map(|clip| Part::Audio((*clip).clone())).collect();
    pictures::prompt(engine, vec![Message::user_about(parts, text)])
}

/// Returns noise of this many milliseconds.
pub fn noise(milliseconds: usize, seed: u64) -> Audio {
    let mut dice = Dice::new(seed);
    let samples: Vec<f32> =
        (0..16 * milliseconds).map(|_| (dice.below(2000) as f32 - 1000.0) / 2000.0).collect();
    Audio::file(mlx_audio::wav::of_samples(&samples))
}

/// Returns prompts of 0 to 5 clips with common prefixes.
pub fn many(engine: &Engine) -> Vec<ChatPrompt> {
    let clips: Vec<Audio> = (0..5).map(|salt| noise(700 + 930 * (salt as usize % 3), salt)).collect();
    (0..=5)
        .map(|count| question(engine, &clips.iter().take(count).collect::<Vec<_>>(), "What is it?"))
        .collect()
}
