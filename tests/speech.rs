//! Texts and segments of Whisper models equal transformers'.

use std::path::PathBuf;

use mlx_audio::LogMel;
use mlx_core::array::{peak_memory, reset_peak_memory};
use mlx_core::engine::{Client, Event, FinishReason, Priority, RequestOptions, Task};
use mlx_core::inspect::inspect;
use mlx_core::speech::{AudioFeatures, FallbackThresholds, SpeechWindow, WindowResult};
use mlx_core::transcription::{Segment, Transcription, TranscriptionOptions, Translate};
use mlx_core::{Abilities, Engine, EngineOptions, Error};
use mlx_tests::deadly::wait_until;
use mlx_tests::{golden_folder, model_folder, speech_signal};
use serde_json::Value;

const NONE: FallbackThresholds =
    FallbackThresholds { compression_ratio: None, logprob: None, no_speech: None };
/// The last three have the names and the config of the original, two of them packed matrices in the files of MLX.
const MODELS: [&str; 5] =
    ["whisper-f32", "whisper-128-f32", "whisper-original-f32", "whisper-q4-npz", "whisper-q8"];

fn folder(name: &str) -> PathBuf {
    golden_folder().join("speech").join(name)
}

fn expected(name: &str) -> Value {
    let path = golden_folder().join("speech/expected.json");
    let all: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    all[name].clone()
}

fn start(name: &str) -> Engine {
    Engine::start(&folder(name), &EngineOptions::default(), |_, _| {}).expect("it starts")
}

fn features(engine: &Engine, times: usize) -> LogMel {
    LogMel::of_samples(&speech_signal(times), engine.spec().whisper.expect("it listens").mel_bins)
}

/// Returns the window of the reference and its prompt: without timestamps, in a language that is detected.
fn window(engine: &Engine, temperatures: &[f32]) -> (Vec<u32>, RequestOptions) {
    let speech = engine.folder().speech().expect("it has the tokens");
    let window = SpeechWindow {
        features: AudioFeatures::from(features(engine, 1).window(0)),
        detects_language: true,
        temperatures: temperatures.to_vec(),
        thresholds: NONE,
        aligned_frames: None,
    };
    let prompt = vec![speech.start, speech.transcribe, speech.no_timestamps];
    (prompt, RequestOptions { task: Task::Transcribe, speech: Some(window), ..RequestOptions::default() })
}

fn run(engine: &Engine, prompt: Vec<u32>, options: &RequestOptions) -> WindowResult {
    let request = engine.request(prompt, options).expect("it can run");
    let mut result = None;
    let finished = engine.submit(request).expect("it is queued").finish(|event| {
        if let Event::Window(window) = event {
            result = Some(*window);
        }
        Ok::<(), Error>(())
    });
    assert_eq!(finished.expect("it ends").reason, FinishReason::EndToken);
    result.expect("a result")
}

#[test]
fn windows_have_the_tokens_and_probabilities_of_transformers() {
    let _turn = mlx_tests::device();
    for name in MODELS {
        let (engine, expected) = (start(name), expected(name));
        let (prompt, options) = window(&engine, &[0.0]);
        let result = run(&engine, prompt, &options);
        let speech = engine.folder().speech().expect("it has the tokens");
        let (language, probability) = result.language.expect("it is detected");
        assert_eq!(speech.code(language), expected["language"].as_str(), "{name}");
        let near = |one: f32, other: &Value, most: f64| {
            (f64::from(one) - other.as_f64().expect("a number")).abs() < most
        };
        assert!(near(probability, &expected["language_probability"], 1e-3), "{name}: {probability}");
        assert!(
            near(result.no_speech_prob, &expected["no_speech"], 1e-4),
            "{name}: {}",
            result.no_speech_prob
        );
        let tokens: Vec<u32> = serde_json::from_value(expected["tokens"].clone()).expect("tokens");
        assert_eq!(result.tokens, tokens, "{name}");
        let logprobs: Vec<f64> = serde_json::from_value(expected["logprobs"].clone()).expect("numbers");
        let mean = logprobs.iter().sum::<f64>() / (tokens.len() + 1) as f64;
        assert!(
            (f64::from(result.avg_logprob) - mean).abs() < 1e-3,
            "{name}: {} and {mean}",
            result.avg_logprob
        );
    }
}

/// Transcribes the signal, repeated, in German.
fn segments(engine: &Engine, times: usize, options: TranscriptionOptions) -> Vec<Segment> {
    let options = TranscriptionOptions { language: Some("de".to_owned()), ..options };
    let base = RequestOptions::default();
    let audio = features(engine, times);
    let mut transcription = Transcription::new(engine, audio, options, &base).expect("it can be transcribed");
    let mut all = Vec::new();
    while let Some(more) = transcription.next_segments().expect("it runs") {
        all.extend(more);
    }
    assert!((transcription.position() - transcription.duration()).abs() < 1e-9, "all of it is transcribed");
    all
}

#[test]
fn long_files_have_the_segments_of_transformers() {
    let _turn = mlx_tests::device();
    for name in &MODELS[..2] {
        let engine = start(name);
        let greedy = TranscriptionOptions {
            temperatures: vec![0.0],
            thresholds: NONE,
            condition_on_previous: false,
            ..TranscriptionOptions::default()
        };
        let found = segments(&engine, 11, greedy);
        let first_timestamp = engine.folder().speech().expect("it has the tokens").first_timestamp;
        let expected = expected(name);
        let expected: Vec<(f64, f64, Vec<u32>)> =
            serde_json::from_value(expected["segments"].clone()).expect("segments");
        assert!(expected.len() > 4, "{name}: several segments in two windows");
        assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        for (found, (start, end, tokens)) in found.iter().zip(expected) {
            assert!(
                (found.start - start).abs() < 0.006 && (found.end - end).abs() < 0.006,
                "{name}: {found:?}"
            );
            // The reference repeats the timestamp of the end of a window.
            let ends_twice =
                matches!(&tokens[..], [.., a, b] if *a >= first_timestamp && *b >= first_timestamp);
            let length = tokens.len() - usize::from(ends_twice);
            assert_eq!(found.tokens, tokens[..length], "{name}");
        }
    }
}

#[test]
fn failed_attempts_are_repeated_at_higher_temperatures() {
    let _turn = mlx_tests::device();
    let engine = start(MODELS[0]);
    let (prompt, mut options) = window(&engine, &[0.0, 0.4, 0.8]);
    options.sampling.seed = Some(7);
    assert!(
        run(&engine, prompt.clone(), &options).temperature.abs() < 1e-6,
        "without thresholds, none fails"
    );
    let set = |options: &mut RequestOptions, thresholds| {
        options.speech.as_mut().expect("a window").thresholds = thresholds;
    };
    set(&mut options, FallbackThresholds { logprob: Some(-0.1), ..NONE });
    let last = run(&engine, prompt.clone(), &options);
    assert!((last.temperature - 0.8).abs() < 1e-6, "all fail, so the last counts: {last:?}");
    assert_eq!(run(&engine, prompt.clone(), &options), last, "the seed determines the draws");
    set(&mut options, FallbackThresholds { logprob: Some(-0.1), no_speech: Some(0.0), ..NONE });
    assert!(run(&engine, prompt, &options).temperature.abs() < 1e-6, "silence is no failure");
    let silent = TranscriptionOptions {
        thresholds: FallbackThresholds { logprob: Some(0.0), no_speech: Some(0.0), ..NONE },
        ..TranscriptionOptions::default()
    };
    assert_eq!(segments(&engine, 11, silent), [], "silence has no segments");
}

#[test]
fn the_text_so_far_is_the_prompt_of_the_next_window() {
    let _turn = mlx_tests::device();
    let engine = start(MODELS[0]);
    let greedy = |condition_on_previous, prompt: Option<&str>| TranscriptionOptions {
        temperatures: vec![0.0],
        thresholds: NONE,
        condition_on_previous,
        prompt: prompt.map(str::to_owned),
        ..TranscriptionOptions::default()
    };
    let without = segments(&engine, 11, greedy(false, None));
    let with = segments(&engine, 11, greedy(true, None));
    let first: usize = without.iter().filter(|segment| segment.seek == 0).count();
    assert_eq!(with[..first], without[..first], "the first window has no previous text");
    assert_ne!(with[first..], without[first..], "later ones have");
    assert_ne!(segments(&engine, 1, greedy(false, Some("Ada"))), segments(&engine, 1, greedy(false, None)));
    let long = "word ".repeat(500);
    segments(&engine, 1, greedy(false, Some(&long)));
}

#[test]
fn cancelled_windows_end_and_others_take_turns() {
    let _turn = mlx_tests::device();
    let engine = start(MODELS[0]);
    let (prompt, options) = window(&engine, &[0.0]);
    let expected = run(&engine, prompt.clone(), &options);
    let requests = (0..9u64).map(|client| {
        let priority = if client % 2 == 0 { Priority::Low } else { Priority::Normal };
        let options = RequestOptions { client: Client(client), priority, ..options.clone() };
        engine.submit(engine.request(prompt.clone(), &options).expect("it can run")).expect("it is queued")
    });
    let mut generations: Vec<_> = requests.collect();
    drop(generations.remove(4));
    generations[0].canceller().cancel();
    for (place, generation) in generations.into_iter().enumerate() {
        let mut result = None;
        let finished = generation.finish(|event| {
            if let Event::Window(window) = event {
                result = Some(*window);
            }
            Ok::<(), Error>(())
        });
        let reason = finished.expect("it ends").reason;
        match place {
            0 => assert!(matches!(reason, FinishReason::Cancelled | FinishReason::EndToken)),
            _ => assert_eq!(result.as_ref(), Some(&expected), "the same text in any company"),
        }
    }
    // A window that was given up ends after its current step.
    wait_until(|| engine.stats().running == 0, || format!("{} windows still run", engine.stats().running));
}

#[test]
fn a_request_of_another_kind_is_refused_by_name() {
    let _turn = mlx_tests::device();
    let engine = start(MODELS[0]);
    let refused = |engine: &Engine, prompt: Vec<u32>, options: &RequestOptions| {
        engine.request(prompt, options).expect_err("it cannot run").to_string()
    };
    let message = refused(&engine, vec![1, 2], &RequestOptions::default());
    assert_eq!(message, "model: is a speech recognizer; it only transcribes and translates audio");
    let (prompt, mut options) = window(&engine, &[0.0]);
    let listening = RequestOptions { speech: None, ..options.clone() };
    assert_eq!(refused(&engine, prompt.clone(), &listening), "audio: is missing");
    options.speech.as_mut().expect("a window").features = AudioFeatures::from(vec![0.0; 80]);
    assert!(refused(&engine, prompt.clone(), &options).starts_with("audio: has 80 features"));
    let chat =
        Engine::start(&model_folder("llama-f32"), &EngineOptions::default(), |_, _| {}).expect("it starts");
    let message = refused(&chat, vec![1], &options);
    assert_eq!(message, "model: is no speech recognizer; it cannot transcribe audio");
    let audio = LogMel::of_samples(&speech_signal(1), 80);
    let of = |language: &str, translate| TranscriptionOptions {
        language: Some(language.to_owned()),
        translate,
        ..TranscriptionOptions::default()
    };
    let transcription =
        Transcription::new(&engine, audio, of("fr", Translate::No), &RequestOptions::default());
    let message = transcription.err().expect("the model lacks it").to_string();
    assert_eq!(message, "language: is french, which the model does not know");
}

#[test]
fn the_memory_of_windows_is_bounded_before_they_run() {
    let _turn = mlx_tests::device();
    let inspected = inspect(&folder(MODELS[0]), &EngineOptions::default()).expect("it is described");
    assert_eq!(inspected.abilities, Abilities { transcribes: true, ..Abilities::default() });
    assert!(inspected.memory_fit.full_contexts > 0);
    let engine = start(MODELS[0]);
    let (prompt, options) = window(&engine, &[0.0]);
    let spec = engine.spec();
    let whisper = spec.whisper.expect("it listens");
    reset_peak_memory().expect("it is reset");
    run(&engine, prompt, &options);
    let (peak, reserved) =
        (peak_memory().expect("it is counted") as u64, whisper.window_bytes + whisper.pass_bytes);
    assert!(peak <= spec.weight_bytes + reserved, "{peak} bytes; {reserved} were reserved");
    assert!(reserved < 6 * peak, "{reserved} bytes were reserved for {peak}");
    let small = EngineOptions { memory_budget: Some(1 << 20), ..EngineOptions::default() };
    let error = Engine::start(&folder(MODELS[0]), &small, |_, _| {}).err().expect("no window fits");
    assert!(error.to_string().contains("a window of audio"), "{error}");
    let with_adapter = EngineOptions { adapters: vec![PathBuf::from("x")], ..EngineOptions::default() };
    let error = Engine::start(&folder(MODELS[0]), &with_adapter, |_, _| {}).err().expect("no adapters");
    assert!(error.to_string().contains("a speech recognizer"), "{error}");
}
