//! The times of words equal those of OpenAI's package.

use std::path::Path;

use mlx_audio::LogMel;
use mlx_core::engine::RequestOptions;
use mlx_core::speech::FallbackThresholds;
use mlx_core::transcription::{Segment, Timed, Transcription, TranscriptionOptions};
use mlx_core::{Engine, EngineOptions};
use mlx_tests::{copied, golden_folder, speech_signal, tensors};
use safetensors::Dtype;
use serde_json::{Value, json};

const MODEL: &str = "whisper-words-f32";

/// A segment of the reference: start, end, tokens, and the text and the times of each word.
type Expected = (f64, f64, Vec<u32>, Vec<(String, f64, f64)>);

fn expected(heads: &str) -> Vec<Expected> {
    let path = golden_folder().join("speech/expected.json");
    let all: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    serde_json::from_value(all[MODEL][heads].clone()).expect("segments with words")
}

/// Transcribes the signal of the reference.
fn segments(folder: &Path, timed: Timed) -> Vec<Segment> {
    let engine = Engine::start(folder, &EngineOptions::default(), |_, _| {}).expect("it starts");
    let options = TranscriptionOptions {
        language: Some("de".to_owned()),
        temperatures: vec![0.0],
        thresholds: FallbackThresholds { compression_ratio: None, logprob: None, no_speech: None },
        condition_on_previous: false,
        timed,
        ..TranscriptionOptions::default()
    };
    let audio = LogMel::of_samples(&speech_signal(11), 80);
    let base = RequestOptions::default();
    let mut transcription =
        Transcription::new(&engine, audio, options, &base).expect("it can be transcribed");
    let mut all = Vec::new();
    while let Some(more) = transcription.next_segments().expect("it runs") {
        all.extend(more);
    }
    all
}

/// Changes the alignment heads in generation_config.json.
fn set_heads(folder: &Path, heads: Option<Value>) {
    let path = folder.join("generation_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
    let fields = config.as_object_mut().expect("an object");
    match heads {
        Some(heads) => fields.insert("alignment_heads".to_owned(), heads),
        None => fields.remove("alignment_heads"),
    };
    std::fs::write(path, config.to_string()).expect("it is written");
}

/// Adds a tensor with alignment heads, as MLX's conversions have it.
fn store_heads(folder: &Path, heads: &[i64]) {
    let path = folder.join("model.safetensors");
    let mut all = tensors::read(&path);
    let bytes = heads.iter().flat_map(|number| number.to_le_bytes()).collect();
    all.insert("alignment_heads".to_owned(), (Dtype::I64, vec![heads.len() / 2, 2], bytes));
    tensors::write(&path, &all);
}

fn assert_equal(found: &[Segment], expected: &[Expected], kind: &str) {
    assert_eq!(found.len(), expected.len(), "{kind}: {found:?}");
    let near = |one: f64, other: f64| (one - other).abs() < 0.006;
    for (segment, (start, end, tokens, words)) in found.iter().zip(expected) {
        assert!(near(segment.start, *start) && near(segment.end, *end), "{kind}: {segment:?} at {start}");
        assert_eq!(&segment.tokens, tokens, "{kind}");
        assert_eq!(segment.words.len(), words.len(), "{kind}: {segment:?}");
        for (word, (text, start, end)) in segment.words.iter().zip(words) {
            assert!(near(word.start, *start) && near(word.end, *end), "{kind}: {word:?} at {start}");
            assert_eq!(&word.text, text, "{kind}");
        }
    }
}

#[test]
fn words_have_the_times_of_openais_package() {
    let _turn = mlx_tests::device();
    let folder = golden_folder().join("speech").join(MODEL);
    assert_equal(&segments(&folder, Timed::Words), &expected("listed"), "a list of heads");
    let copy = copied(&folder);
    set_heads(copy.path(), None);
    assert_equal(&segments(copy.path(), Timed::Both), &expected("default"), "the last half of the layers");
    store_heads(copy.path(), &[0, 1, 1, 0]);
    assert_equal(&segments(copy.path(), Timed::Words), &expected("listed"), "a tensor of heads");
    assert!(segments(&folder, Timed::Segments).iter().all(|segment| segment.words.is_empty()));
}

#[test]
fn heads_that_the_model_lacks_are_refused_by_name() {
    let _turn = mlx_tests::device();
    let copy = copied(&golden_folder().join("speech").join(MODEL));
    let message = || {
        let engine = Engine::start(copy.path(), &EngineOptions::default(), |_, _| {});
        engine.err().expect("it cannot be loaded").to_string()
    };
    for heads in [json!([[2, 0]]), json!([[0, -1]]), json!([[0]]), json!([0, 1]), json!("all")] {
        set_heads(copy.path(), Some(heads));
        let message = message();
        assert!(
            message.contains("generation_config.json") && message.contains("a layer below 2"),
            "{message}"
        );
    }
    set_heads(copy.path(), None);
    store_heads(copy.path(), &[0, 2]);
    let message = message();
    assert!(message.contains("tensor alignment_heads must list pairs"), "{message}");
}
