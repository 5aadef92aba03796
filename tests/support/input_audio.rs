//! Tiny checkpoints that hear, transformers' results for prompts with audio, and questions about clips.

use std::path::PathBuf;

use chat_format::{Audio, Image, Message, Part};
use mlx_core::backend::Backend;
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::model::AudioTower;
use mlx_core::weights::WeightPolicy;
use serde_json::Value;

use crate::{Dice, golden_folder, pictures};

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
