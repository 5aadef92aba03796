//! `mlx transcribe` with a chat model that hears: the text of a chat, several files, and errors that name the flag.

use std::process::{Command, Output};

use mlx_tests::input_audio::{folder, noise};
use mlx_tests::{golden_folder, model_folder, piped};
use serde_json::Value;

fn mlx(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    piped(command, "")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_transcript_is_the_text_of_a_chat() {
    let model = text(&folder("qwen3_asr-f32"));
    let clip = text(&golden_folder().join("input_audio/36960.wav"));
    let found = out(&mlx(&["transcribe", "-m", &model, &clip]));
    let chat = ["generate", "-m", &model, "-p", "", "--system", "", "--audio", &clip];
    let chat = out(&mlx(&[&chat[..], &["--temperature", "0", "--max-tokens", "92"]].concat()));
    assert_eq!(found.trim(), chat.trim());
    assert!(!found.trim().is_empty());
    assert_eq!(out(&mlx(&["transcribe", "-m", &model, "--no-previous-text", &clip])), found);
    let warm = ["transcribe", "-m", &model, "--temperature", "1", "--seed", "3", &clip];
    assert_ne!(out(&mlx(&warm)), found);
    assert_eq!(out(&mlx(&warm)), out(&mlx(&warm)), "the seed determines the draws");
}

#[test]
fn long_files_have_a_segment_for_each_chunk() {
    let work = tempfile::tempdir().expect("a folder");
    let (long, short) = (work.path().join("long.wav"), work.path().join("short.wav"));
    std::fs::write(&long, noise(60_000, 5).bytes()).expect("a file");
    std::fs::write(&short, noise(900, 6).bytes()).expect("a file");
    let (model, output) = (text(&folder("qwen3_asr-f32")), work.path().join("texts"));
    let arguments =
        ["transcribe", "-m", &model, "--format", "verbose_json", "--language", "en", "--output-dir"];
    out(&mlx(&[&arguments[..], &[&text(&output), &text(&long), &text(&short)]].concat()));
    for (name, count) in [("long.wav.json", 2), ("short.wav.json", 1)] {
        let bytes = std::fs::read(output.join(name)).expect("a transcript");
        let transcript: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(transcript["language"], "english");
        assert_eq!(transcript["segments"].as_array().map(Vec::len), Some(count), "{name}");
    }
}

#[test]
fn what_the_model_lacks_is_named_by_its_flag() {
    let (model, clip) =
        (text(&folder("qwen3_asr-f32")), text(&golden_folder().join("input_audio/16000.wav")));
    let refused =
        |model: &str, more: &[&str]| error(&mlx(&[&["transcribe", "-m", model, &clip], more].concat()));
    let translated = refused(&model, &["--task", "translate"]);
    assert!(translated.contains("--task translate") && translated.contains("Whisper"), "{translated}");
    let words = refused(&model, &["--word-timestamps", "--format", "srt"]);
    assert!(words.contains("--word-timestamps") && words.contains("Whisper"), "{words}");
    let welsh = refused(&model, &["--language", "welsh"]);
    assert!(welsh.contains("--language is welsh") && welsh.contains("Arabic, Cantonese"), "{welsh}");
    let deaf = refused(&text(&model_folder("llama-f32")), &[]);
    assert!(deaf.contains("Qwen/Qwen3-ASR-0.6B-hf"), "{deaf}");
}
