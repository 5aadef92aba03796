//! Audio on the command line: `mlx generate --audio`, `@voice.wav` in a chat, and their replays.

use std::process::{Command, Output};

use mlx_tests::input_audio::{folder, golden};
use mlx_tests::{golden_folder, model_folder, piped};
use serde_json::Value;

const MODEL: &str = "gemma4_unified-f32";

fn mlx(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    piped(command, input)
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns the path of a fixture's clip.
fn clip(name: &str) -> String {
    text(&golden_folder().join("input_audio").join(name))
}

#[test]
fn generate_hears_audio_and_can_be_replayed() {
    let case = &golden(MODEL).cases[1];
    let (model, audio, other) = (text(&folder(MODEL)), clip("8480.wav"), clip("1000.wav"));
    let arguments =
        ["generate", "-m", &model, "-p", "What is this?", "--audio", &audio, "--temperature", "0", "--json"];
    let record = out(&mlx(&[&arguments[..], &["--max-tokens", "32", "--ignore-eos"]].concat(), ""));
    let answer: Value = serde_json::from_str(&record).expect("JSON");
    let ids: Vec<&Value> = answer["tokens"].as_array().expect("a list").iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, case["tokens"].as_array().expect("a list").iter().collect::<Vec<_>>());
    assert_eq!(answer["request"]["audio"].as_array().map(Vec::len), Some(1));
    // A record may come from another machine, so its audio must be given again.
    assert!(out(&mlx(&["replay", "--audio", &other, "--audio", &audio], &record)).contains("identical"));
    let refused = mlx(&["replay", "--audio", &other], &record);
    let expected = "--audio is needed: record 1 uses audio (1)";
    assert!(error(&refused).contains(expected), "{}", error(&refused));
    let chat = mlx(
        &["chat", "-m", &model, "--max-tokens", "32", "--temperature", "0"],
        &format!("What is this? @{audio}\n"),
    );
    assert!(!out(&chat).is_empty());
    let notes = String::from_utf8_lossy(&chat.stderr);
    assert!(notes.contains("8480.wav, a recording"), "{notes}");
}

#[test]
fn what_cannot_be_heard_is_named() {
    let (model, audio) = (text(&folder(MODEL)), clip("8480.wav"));
    let config = text(&folder(MODEL).join("config.json"));
    let base = ["generate", "-m", &model, "-p", "x", "--audio"];
    let refused = error(&mlx(&[&base[..], &[&config]].concat(), ""));
    assert!(refused.contains("is not a wav, flac, mp3, m4a, aac or ogg file"), "{refused}");
    let text_only = text(&model_folder("llama-f32"));
    let refused = error(&mlx(&["generate", "-m", &text_only, "-p", "x", "--audio", &audio], ""));
    assert!(refused.starts_with("error: --audio cannot be given to llama"), "{refused}");
    let work = tempfile::tempdir().expect("a folder");
    let broken = text(&work.path().join("broken.wav"));
    std::fs::write(&broken, &std::fs::read(&audio).expect("the fixture is there")[..9000]).expect("a file");
    let refused = error(&mlx(&[&base[..], &[&audio, "--audio", &broken]].concat(), ""));
    let expected = format!("error: --audio {broken} is refused: the audio file is cut");
    assert!(refused.starts_with(&expected), "{refused}");
    let chat = error(&mlx(&["chat", "-m", &text_only, "--max-tokens", "2"], &format!("what is @{audio}?\n")));
    assert!(chat.contains("8480.wav is a recording, and this model reads only text"), "{chat}");
}
