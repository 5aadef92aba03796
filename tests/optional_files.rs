//! Optional model files: a fault in one is a warning that names the file and the key. Required files stay strict.

use std::path::Path;

use mlx_core::ModelFolder;
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::inspect;
use mlx_tests::{device, model_copy};
use serde_json::json;

use crate::loading::{assert_refused, edit, scattered};

/// A model with a damaged generation_config.json runs, and a warning names the file and the key.
#[test]
fn a_fault_in_an_optional_file_is_a_warning() {
    let _turn = device();
    let (file, copy) = ("generation_config.json", model_copy("llama-f32"));
    let good = ModelFolder::open(copy.path()).expect("it opens");
    assert!(good.warnings.texts().is_empty(), "{:?}", good.warnings);
    for (text, words) in [
        (r#"{"temperature": 0.2,}"#, &["is not valid JSON", "the file is ignored"][..]),
        ("", &["is empty"]),
        ("\u{feff}{\"temperature\": 0.2}", &["byte order mark"]),
        ("[]", &["is not a JSON object"]),
        (r#"{"top_k": 7, "top_p": 1.5}"#, &["top_p", "1.5", "this setting is ignored"]),
        (r#"{"top_k": 7, "temperature": -2}"#, &["temperature", "-2"]),
        (r#"{"top_k": 7, "temperature": "hot"}"#, &["temperature", "hot"]),
        (r#"{"top_k": 7, "do_sample": "yes"}"#, &["do_sample", "yes"]),
        (r#"{"top_k": 7, "eos_token_id": -1}"#, &["eos_token_id", "end tokens are ignored"]),
    ] {
        std::fs::write(copy.path().join(file), text).expect("it can be written");
        let folder = ModelFolder::open(copy.path()).expect("it opens all the same");
        let [warning] = folder.warnings.texts() else { panic!("{text}: {:?}", folder.warnings) };
        for word in [file].iter().chain(words) {
            assert!(warning.contains(word), "{text}: {warning:?} does not mention {word:?}");
        }
        // The other settings and the end tokens of the other files are used.
        assert_eq!(folder.sampling.top_k, text.contains("top_k").then_some(7), "{text}");
        // A checkpoint that sets one sampling parameter has chosen its sampling, so the others are off.
        let off = text.contains("top_k").then_some(1.0);
        assert_eq!((folder.sampling.temperature, folder.sampling.top_p), (off, off), "{text}");
        assert!(folder.end_tokens.contains(&4), "{text}");
    }
    let inspection = inspect(copy.path(), &EngineOptions::single()).expect("it can be inspected");
    assert!(inspection.warnings.texts()[0].contains("eos_token_id"), "{:?}", inspection.warnings);
    // Special tokens of prompts are in this file, unless tokenizer_config.json has all of them.
    std::fs::remove_file(copy.path().join(file)).expect("a file");
    std::fs::write(copy.path().join("special_tokens_map.json"), "{").expect("it can be written");
    let needed = ModelFolder::open(copy.path()).map(drop).expect_err("it is needed").to_string();
    assert!(needed.contains("special_tokens_map.json"), "{needed}");
    edit("tokenizer_config.json", |config| config["added_tokens_decoder"] = json!({}))(copy.path());
    let folder = ModelFolder::open(copy.path()).expect("it is not needed");
    assert!(folder.warnings.texts()[0].contains("special_tokens_map.json"), "{:?}", folder.warnings);
}

#[test]
fn a_required_file_in_another_encoding_is_named() {
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let with_mark = |folder: &Path| {
            let text = std::fs::read_to_string(folder.join(file)).expect("a file");
            std::fs::write(folder.join(file), format!("\u{feff}{text}")).expect("it can be written");
        };
        assert_refused("llama-f32", with_mark, &[file, "byte order mark", "UTF-8"]);
        let empty = |folder: &Path| std::fs::write(folder.join(file), "").expect("it can be written");
        assert_refused("llama-f32", empty, &[file, "is empty"]);
    }
}

#[test]
fn no_damage_of_an_optional_file_keeps_a_model_from_opening() {
    let copy = model_copy("llama-f32");
    let path = copy.path().join("generation_config.json");
    let good = std::fs::read(&path).expect("the file is there");
    for round in 0..40 {
        let mut bytes = good[..scattered(round, good.len() + 1)].to_vec();
        if let Some(byte) = bytes.get_mut(round) {
            *byte ^= 1 << (round % 8);
        }
        std::fs::write(&path, &bytes).expect("the file can be written");
        ModelFolder::open(copy.path()).expect("it opens");
    }
}
