//! What the tests share: the turn on the device, the fixtures, and small ways to run a model.

pub mod golden;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mlx_core::engine::{
    EngineHandle, EngineOptions, Event, Finished, PromptToken, RequestOptions, TokenOutput,
};
use mlx_core::sampling::SamplingOptions;

/// The turn on the device. MLX is not safe under parallel tests, so whatever computes holds this.
pub fn device() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `tests/golden`.
pub fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// The folder of a tiny checkpoint.
pub fn model_folder(name: &str) -> PathBuf {
    golden_folder().join("models").join(name)
}

/// A copy of a tiny checkpoint that a test may damage.
///
/// # Panics
/// When the copy cannot be made.
pub fn model_copy(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(model_folder(name)).expect("the fixture is in the repository") {
        let path = entry.expect("the folder can be listed").path();
        let name = path.file_name().expect("a file has a name");
        std::fs::copy(&path, copy.path().join(name)).expect("the file can be copied");
    }
    copy
}

/// An engine on a tiny checkpoint.
///
/// # Panics
/// When the checkpoint does not load.
pub fn engine(name: &str) -> EngineHandle {
    EngineHandle::start(&model_folder(name), &EngineOptions::default(), |_, _| {}).expect("the fixture loads")
}

/// Options of a greedy request for `tokens` tokens that ignores end tokens.
pub fn greedy(tokens: usize) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

/// Everything that a generation gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The tokens of the prompt, if they were scored.
    pub prompt_tokens: Vec<PromptToken>,
    /// The tokens, with text and log-probabilities.
    pub tokens: Vec<TokenOutput>,
    /// The text that was shown.
    pub text: String,
    /// How it ended.
    pub finished: Finished,
}

impl Outcome {
    /// The ids of the tokens.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Runs one request to its end.
///
/// # Panics
/// When the request is refused or its stream has no end.
pub fn run(engine: &EngineHandle, prompt: &[u32], options: &RequestOptions) -> Outcome {
    let request = engine.request(prompt.to_vec(), options).expect("the request is valid");
    let (mut prompt_tokens, mut tokens, mut text) = (Vec::new(), Vec::new(), String::new());
    for event in engine.submit(request).expect("the engine runs") {
        match event {
            Event::Prompt(token) => prompt_tokens.push(token),
            Event::Token(token) => {
                text.push_str(&token.delta);
                tokens.push(token);
            }
            Event::Done(finished) => {
                text.push_str(&finished.delta);
                return Outcome { prompt_tokens, tokens, text, finished };
            }
        }
    }
    panic!("the stream ended without `Done`");
}
