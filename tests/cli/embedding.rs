//! `mlx embed`: vectors of arguments and lines, and the errors of models that do other things.

use std::path::Path;

use mlx_tests::model_copy;
use mlx_tests::server::Server;
use serde_json::{Value, json};

use super::{mlx, model, stderr, stdout};

/// Returns a copy of a tiny checkpoint that counts as an embedding model.
fn embedding_model() -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    let write = |file: &str, value: Value| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, value.to_string()).expect("it can be written");
    };
    write("1_Pooling/config.json", json!({"pooling_mode": "mean"}));
    let prompts = json!({"prompts": {"query": "Find: "}});
    write("config_sentence_transformers.json", prompts);
    folder
}

fn name(folder: &Path) -> &str {
    folder.to_str().expect("utf-8")
}

/// Returns the printed objects.
fn lines(arguments: &[&str], input: &str) -> Vec<Value> {
    let output = mlx(&[&["embed"], arguments].concat(), input);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

#[test]
fn embed_prints_the_vectors_of_arguments_and_lines() {
    let folder = embedding_model();
    let name = name(folder.path());
    let both = lines(&[name, "The waves", "The keeper"], "");
    let texts: Vec<&Value> = both.iter().map(|line| &line["text"]).collect();
    assert_eq!(texts, ["The waves", "The keeper"]);
    assert!(both[1]["index"] == 1 && both[1]["truncated"] == false && both[1]["tokens"].as_u64() > Some(0));
    assert_eq!(lines(&["-m", name, "The waves", "The keeper"], ""), both, "a flag names the model");
    assert_eq!(lines(&[name], "The waves\n\nThe keeper\n"), both, "one text a line; blank lines are skipped");
    let server = Server::start_on(&[env!("CARGO_BIN_EXE_mlx"), "serve"], folder.path(), &[]);
    let vector =
        |request: Value| server.post("/v1/embeddings", &request).body["data"][0]["embedding"].clone();
    assert_eq!(both[0]["embedding"], vector(json!({"input": "The waves"})));
    let query = &lines(&[name, "--query", "--dimensions", "4", "The waves"], "")[0]["embedding"];
    assert_eq!(query, &vector(json!({"input": "The waves", "input_type": "query", "dimensions": 4})));
    let named = lines(&[name, "--prompt-name", "query", "--normalize=false", "The waves"], "");
    let expected = vector(json!({"input": "The waves", "prompt": "Find: ", "normalize": false}));
    assert_eq!(named[0]["embedding"], expected);
    assert_eq!(lines(&[name, "--prompt", "Find: ", "--normalize=false", "The waves"], "")[0], named[0]);
    let long = "The waves ".repeat(400);
    let cut = mlx(&["embed", name, &long], "");
    assert!(stderr(&cut).contains("cut") && stdout(&cut).contains("\"truncated\":true"), "{}", stderr(&cut));
}

#[test]
fn embed_names_mistakes_and_the_other_commands_name_embed() {
    let folder = embedding_model();
    let name = name(folder.path());
    let long = "The waves ".repeat(400);
    for (arguments, word) in [
        (&[name, ""][..], "TEXT is empty"),
        (&[name, "a", "--dimensions", "33"], "--dimensions is 33; the model's vectors have 32 numbers"),
        (&[name, "a", "--prompt-name", "other"], "--prompt-name is \"other\"; the model has query"),
        (&[name, &long, "--no-truncate"], "TEXT has more than 256 tokens"),
        (&[name, "a", "--query", "--prompt", "b"], "--prompt"),
    ] {
        let output = mlx(&[&["embed"], arguments].concat(), "");
        assert!(output.status.code() == Some(2) && stderr(&output).contains(word), "{}", stderr(&output));
    }
    for command in [&["chat"][..], &["generate", "-p", "Hello"]] {
        let output = mlx(&[command, &["-m", name]].concat(), "");
        let message = stderr(&output);
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.contains("does not chat; run `mlx embed ") && message.contains(name), "{message}");
    }
    let inspected = super::json(&["inspect", name, "--json"], "");
    assert_eq!(inspected["abilities"], json!(["embed"]));
    let chat = model("llama-f32");
    assert_eq!(super::json(&["inspect", &chat, "--json"], "")["abilities"], json!(["chat"]));
    let noted = mlx(&["embed", &chat, "a"], "");
    assert!(noted.status.success() && stderr(&noted).contains("is a chat model"), "{}", stderr(&noted));
}
