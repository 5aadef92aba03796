//! Tiny vision checkpoints, transformers' results for prompts with pictures, and answers about pictures.

use std::path::{Path, PathBuf};

use chat_format::text::NO_PAUSE;
use chat_format::{Image, Message, Part, TemplateInput};
use mlx_core::backend::Backend;
use mlx_core::chat::{ChatPrompt, chat_prompt};
use mlx_core::engine::{Engine, EngineOptions, FinishReason, Generation, RequestOptions, TokenOutput};
use mlx_core::model::Vision;
use mlx_core::weights::WeightPolicy;
use serde_json::Value;

use crate::{Dice, Outcome, collect, golden_folder, greedy, tensors};

/// The checkpoint with two-way attention within a picture.
pub const TWO_WAY: &str = "gemma4-two-way-f32";

/// One checkpoint of each kind.
pub const MODELS: [&str; 8] = [
    "mistral3-f32",
    "qwen2_vl-f32",
    "qwen2_5_vl-f32",
    "qwen3_5-f32",
    "qwen3_vl-f32",
    "gemma4-f32",
    "lfm2_vl-f32",
    TWO_WAY,
];

/// Returns the folder of a tiny vision checkpoint.
pub fn folder(name: &str) -> PathBuf {
    golden_folder().join("pictures").join(name)
}

/// Returns all checkpoints with answers of transformers, including mixtures of experts, checkpoints with towers and texts that mlx-vlm
/// has quantized, and the Gemma 4 without a tower.
pub fn with_answers() -> impl Iterator<Item = &'static str> {
    let mixtures = ["qwen3_5_moe-f32", "qwen3_vl_moe-f32"];
    let quantized = ["mistral3-q4-f32", "qwen3_vl-q4-f32", "gemma4-q4-f32"];
    MODELS.into_iter().chain(mixtures).chain(quantized).chain(["gemma4_unified-f32", "lfm2_vl-plain-f32"])
}

/// Returns the floats of these bytes.
///
/// # Panics
/// If the length is not a multiple of four.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

/// Loads the tower of a tiny checkpoint.
///
/// # Panics
/// If it does not load.
pub fn load(name: &str) -> Vision {
    load_from(&folder(name))
}

/// Loads the tower of the model in a folder.
///
/// # Panics
/// If it does not load.
pub fn load_from(folder: &Path) -> Vision {
    Vision::load(folder, WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).expect("it loads")
}

/// Starts an engine on a tiny vision checkpoint.
///
/// # Panics
/// If it does not load.
pub fn start(name: &str, options: &EngineOptions) -> Engine {
    start_from(&folder(name), options)
}

/// Starts an engine on the model in a folder.
///
/// # Panics
/// If it does not load.
pub fn start_from(folder: &Path, options: &EngineOptions) -> Engine {
    Engine::start(folder, options, |_, _| {}).expect("it loads")
}

/// Returns options of an engine with exact answers.
pub fn exact() -> EngineOptions {
    EngineOptions { exact: true, ..EngineOptions::default() }
}

/// transformers' results for prompts with pictures.
pub struct Golden {
    /// The pictures before resizing.
    pub images: Vec<Image>,
    /// Their sizes, which name the features.
    pub names: Vec<String>,
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
    let tensors = tensors::read(&folder(name).join("expected.safetensors"));
    let sizes = value["sizes"].as_array().expect("sizes").iter();
    let sizes: Vec<(u64, u64)> =
        sizes.map(|size| (size[0].as_u64().expect("width"), size[1].as_u64().expect("height"))).collect();
    let names: Vec<String> = sizes.iter().map(|(width, height)| format!("{width}x{height}")).collect();
    let image = |(&(width, height), name): (&(u64, u64), &String)| {
        let pixels = floats(&tensors[&format!("{name}.pixels")].2);
        let pixels = pixels.into_iter().map(|value| value as u8).collect();
        Image::new(width as u32, height as u32, pixels).expect("a picture")
    };
    let images = sizes.iter().zip(&names).map(image).collect();
    Golden { images, names, cases: value["cases"].as_array().expect("cases").clone() }
}

/// Returns the integers of a fixture.
///
/// # Panics
/// If a value is not such an integer.
pub fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let number = |it: &Value| it.as_u64().and_then(|it| T::try_from(it).ok()).expect("a number");
    value.as_array().expect("numbers").iter().map(number).collect()
}

/// Returns the messages of a case.
///
/// # Panics
/// If the fixture has another format.
pub fn messages(golden: &Golden, case: &Value) -> Vec<Message> {
    let part = |part: &Value| match part["picture"].as_u64() {
        Some(picture) => Part::Image(golden.images[picture as usize].clone()),
        None => Part::Text(part["text"].as_str().expect("a text").to_owned()),
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

/// Returns the prompt for the next answer of a conversation.
///
/// # Panics
/// If the template rejects it.
pub fn prompt(engine: &Engine, messages: Vec<Message>) -> ChatPrompt {
    let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
    chat_prompt(engine, &input, NO_PAUSE).expect("it renders")
}

/// Returns the prompt of a question about some pictures.
pub fn question(engine: &Engine, images: &[&Image], text: &str) -> ChatPrompt {
    let images = images.iter().map(|image| Part::Image((*image).clone()));
    let parts = images.chain([Part::Text(text.to_owned())]).collect();
    prompt(engine, vec![Message { parts, ..Message::user("") }])
}

/// Returns options of a greedy request with log probabilities.
pub fn options(prompt: &ChatPrompt, tokens: usize) -> RequestOptions {
    let (images, audio) = (prompt.images.clone(), prompt.audio.clone());
    RequestOptions { images, audio, is_message: true, logprobs: Some(0), ..greedy(tokens) }
}

/// Submits a request for a greedy answer.
///
/// # Panics
/// If the request is rejected.
pub fn submit(engine: &Engine, prompt: &ChatPrompt, tokens: usize) -> Generation {
    let request = engine.request(prompt.tokens.clone(), &options(prompt, tokens)).expect("it is valid");
    engine.submit(request).expect("it runs")
}

/// Returns a greedy answer.
pub fn answer(engine: &Engine, prompt: &ChatPrompt, tokens: usize) -> Outcome {
    collect(submit(engine, prompt, tokens))
}

/// Returns the tokens of an answer and the bits of their log probabilities.
///
/// # Panics
/// If it did not end at its limit.
pub fn bits(outcome: &Outcome) -> Vec<(u32, u32)> {
    assert_eq!(outcome.finished.reason, FinishReason::Length);
    let logprob = |token: &TokenOutput| token.logprob.as_ref().map(|it| it.logprob.to_bits());
    outcome.tokens.iter().map(|token| (token.id, logprob(token).expect("it was asked for"))).collect()
}

/// Returns the number of cached prompt tokens.
pub fn cached(outcome: &Outcome) -> usize {
    outcome.finished.usage.cached_tokens
}

/// Returns a picture of noise.
///
/// # Panics
/// If a side is 0.
pub fn noise(width: u32, height: u32, seed: u64) -> Image {
    let mut dice = Dice::new(seed);
    let pixels = (0..width * height * 3).map(|_| dice.below(256) as u8).collect();
    Image::new(width, height, pixels).expect("a picture")
}

/// Returns prompts of 0 to 8 pictures with common prefixes.
pub fn many(engine: &Engine) -> Vec<ChatPrompt> {
    let images: Vec<Image> =
        (0..8).map(|salt| noise(60 + 13 * (salt as u32 % 4), 70 + 20 * (salt as u32 % 3), salt)).collect();
    (0..=8)
        .map(|count| question(engine, &images.iter().take(count).collect::<Vec<_>>(), "What is there?"))
        .collect()
}
