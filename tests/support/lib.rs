//! Shared test support: the device lock, fixtures, and helpers to run a model.
#![forbid(unsafe_code)]

pub mod deadly;
pub mod divisible;
pub mod golden;
pub mod harmony;
pub mod hub;
pub mod input_audio;
pub mod machines;
pub mod mcp;
pub mod pictures;
pub mod proxy;
pub mod requests;
pub mod scale;
pub mod schemas;
pub mod scripted;
pub mod server;
pub mod skipped;
pub mod successors;
pub mod tensors;
pub mod tide;
pub mod validator;
pub mod worker_process;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chat_format::text::Tokenizer;
use mlx_core::backend::{Backend, device_name};
use mlx_core::engine::{
    Engine, EngineOptions, EngineStats, Event, Exactness, Finished, Generation, PromptToken, RequestOptions,
    TokenOutput,
};
use mlx_core::sampling::SamplingOptions;
use mlx_rs::Device;

/// Locks the device. MLX is not safe under parallel tests, so every test that computes holds this lock. The device is detected first,
/// because MLX's scheduler must not belong to a test's thread.
///
/// # Panics
/// If there is no device.
pub fn device() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    Backend::detect().expect("a device");
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the device and makes the CPU the default device, for guarantees that hold only on a CPU.
pub fn cpu() -> CpuGuard {
    let lock = device();
    let default = Device::try_default().ok();
    Device::set_default(&Device::cpu());
    CpuGuard { default, _lock: lock }
}

/// Restores the default device and unlocks it when dropped.
pub struct CpuGuard {
    default: Option<Device>,
    _lock: MutexGuard<'static, ()>,
}

impl Drop for CpuGuard {
    fn drop(&mut self) {
        if let Some(default) = &self.default {
            Device::set_default(default);
        }
    }
}

/// Returns `tests/golden`.
pub fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Returns the folder of a tiny checkpoint.
pub fn model_folder(name: &str) -> PathBuf {
    golden_folder().join("models").join(name)
}

/// Returns a copy of a tiny checkpoint that a test may damage.
///
/// # Panics
/// If the copy cannot be made.
pub fn model_copy(name: &str) -> tempfile::TempDir {
    copied(&model_folder(name))
}

/// Copies the files of a folder. The path of the copy contains no symlinks; on a Mac, the folder for temporary files is below one.
///
/// # Panics
/// If they cannot be copied.
pub fn copied(folder: &Path) -> tempfile::TempDir {
    let whole = std::env::temp_dir().canonicalize().expect("the system has one");
    let copy = tempfile::tempdir_in(whole).expect("a temporary folder");
    for entry in std::fs::read_dir(folder).expect("the fixture is in the repository") {
        let path = entry.expect("the folder can be listed").path();
        let name = path.file_name().expect("a file has a name");
        std::fs::copy(&path, copy.path().join(name)).expect("the file can be copied");
    }
    copy
}

/// The signal of `tests/golden/audio.py`, repeated.
#[must_use]
pub fn speech_signal(times: usize) -> Vec<f32> {
    let mut state = 1u32;
    let sample = |place: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state) / 2f64.powi(31) - 1.0;
        let time = place as f64 / 16_000.0;
        let tone = 0.3 * (std::f64::consts::TAU * (200.0 + 700.0 * time) * time).sin();
        if (16_000..20_000).contains(&place) { 0.0 } else { (tone + 0.05 * noise) as f32 }
    };
    (0..3 * 16_000 + 77).map(sample).collect::<Vec<f32>>().repeat(times)
}

/// Starts an engine on a tiny checkpoint.
///
/// # Panics
/// If the checkpoint does not load.
pub fn engine(name: &str) -> Engine {
    Engine::start(&model_folder(name), &EngineOptions::default(), |_, _| {}).expect("the fixture loads")
}

/// Returns the exactness of results on the device of this process. A CPU on Linux must be bit-exact; another device must be as exact as
/// it reports.
///
/// # Panics
/// If the checkpoint does not load, or a CPU on Linux is not bit-exact.
pub fn exact_level(folder: &Path) -> Exactness {
    let options = EngineOptions { exact: true, ..EngineOptions::single() };
    let engine = Engine::start(folder, &options, |_, _| {}).expect("the fixture loads");
    keeps_bits(&engine);
    engine.exactness()
}

/// Returns true if exact results of this engine have the same bits every time. Its requests must be exact by default. Otherwise the check
/// counts as skipped.
///
/// # Panics
/// If a CPU on Linux is not bit-exact.
pub fn keeps_bits(engine: &Engine) -> bool {
    let keeps = engine.exactness() == Exactness::Bit;
    let is_promised = std::env::consts::OS == "linux" && device_name().expect("a device") == "cpu";
    assert!(keeps || !is_promised, "{}: no width keeps a row's bits", engine.spec().family);
    skipped::possible(keeps, "a device that keeps a row's bits")
}

/// Returns options of a greedy request for `tokens` tokens that ignores end tokens.
pub fn greedy(tokens: usize) -> RequestOptions {
    RequestOptions {
        sampling: SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

/// The complete outcome of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The tokens of the prompt, if they were scored.
    pub prompt_tokens: Vec<PromptToken>,
    /// The embedding of the prompt, if requested.
    pub embedding: Option<Vec<f32>>,
    /// The logits of a classification head, if requested.
    pub scores: Option<Vec<f32>>,
    /// The tokens, with text and log probabilities.
    pub tokens: Vec<TokenOutput>,
    /// The emitted text.
    pub text: String,
    /// The finish reason.
    pub finished: Finished,
}

impl Outcome {
    /// Returns the ids of the tokens.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Runs one request to its end.
///
/// # Panics
/// If the request is rejected or its stream has no end.
pub fn run(engine: &Engine, prompt: &[u32], options: &RequestOptions) -> Outcome {
    let request = engine.request(prompt.to_vec(), options).expect("the request is valid");
    collect(engine.submit(request).expect("the engine runs"))
}

/// Returns the statistics of an engine after its last step. A step records them just after the client has its answer.
///
/// # Panics
/// If requests still run after a minute.
pub fn at_rest(engine: &Engine) -> EngineStats {
    let begun = Instant::now();
    loop {
        let stats = engine.stats();
        if stats.running + stats.waiting == 0 {
            // The statistics are older than the number of running requests.
            return engine.stats();
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "requests still run: {stats:?}");
        std::thread::yield_now();
    }
}

/// Collects the outcome of a generation.
///
/// # Panics
/// If its stream has no end.
pub fn collect(generation: Generation) -> Outcome {
    outcome(generation)
}

/// Collects the outcome of these events.
///
/// # Panics
/// If they have no end.
pub fn outcome(events: impl Iterator<Item = Event>) -> Outcome {
    let (mut prompt_tokens, mut tokens, mut text) = (Vec::new(), Vec::new(), String::new());
    let (mut embedding, mut scores, mut last) = (None, None, None);
    for event in events {
        match event {
            Event::Prompt(token) => prompt_tokens.push(token),
            Event::Embedding(vector) => embedding = Some(vector),
            Event::Scores(logits) => scores = Some(logits),
            Event::PromptProgress { .. } | Event::Window(_) => {}
            Event::Token(token) => {
                text.push_str(&token.delta);
                tokens.push(token);
            }
            Event::Done(finished) => last = Some(finished),
        }
    }
    let finished = last.expect("the last event is the end");
    text.push_str(&finished.delta);
    Outcome { prompt_tokens, embedding, scores, tokens, text, finished }
}

/// Returns the text that `answer` adds to `prompt`. It may complete a character that the prompt cuts.
pub fn added(tokenizer: &Tokenizer, prompt: &[u32], answer: &[u32]) -> String {
    let before = tokenizer.decode(prompt, true);
    let whole = tokenizer.decode(&[prompt, answer].concat(), true);
    let same = before.chars().zip(whole.chars()).take_while(|(one, other)| one == other).count();
    whole.chars().skip(same).collect()
}

/// A small deterministic random generator.
pub struct Dice(u64);

impl Dice {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493))
    }

    /// Returns a number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a value with a probability of one in `rarity`.
    pub fn sometimes<T>(&mut self, rarity: usize, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(rarity) == 0).then(|| value(self))
    }
}

/// Runs a program with this standard input and without the environment variables for models.
///
/// # Panics
/// If it does not start.
pub fn piped(mut command: std::process::Command, input: &str) -> std::process::Output {
    use std::io::Write;
    use std::process::Stdio;
    command.env_remove("MLX_MODEL").env_remove("MLX_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A program that rejects its arguments closes standard input early.
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).ok();
    child.wait_with_output().expect("the program ends")
}
