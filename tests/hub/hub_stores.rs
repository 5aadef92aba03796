//! Models in the stores of LM Studio and Ollama: found by name, listed, and never changed.

use std::fs;
use std::os::unix::fs::symlink;

use mlx_tests::model_folder;
use mlx_tests::server::Server;
use serde_json::Value;

use super::{MODEL, Setup, failed, stderr, stdout, succeeded};

const BLOB: &str = "sha256-1111111111111111111111111111111111111111111111111111111111111111";

/// Returns a home with a model in LM Studio's folder and two in Ollama's store.
fn setup() -> Setup {
    let setup = Setup::new();
    let home = setup.home.path();
    let write = |file: &str, text: &str| {
        let path = home.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
        fs::write(path, text).expect("writes");
    };
    write(".lmstudio/settings.json", "{ damaged");
    write(".lmstudio/models/org/half/config.json", "{}");
    symlink(model_folder(MODEL), home.join(".lmstudio/models/org/studio")).expect("links");
    let manifest = format!(
        r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "{}"}}]}}"#,
        BLOB.replace('-', ":")
    );
    write(".ollama/models/manifests/registry.ollama.ai/library/lake/3b", &manifest);
    write(".ollama/models/manifests/registry.ollama.ai/library/damaged/latest", "{");
    write(&format!(".ollama/models/blobs/{BLOB}"), "GGUF");
    setup
}

fn listed(setup: &Setup) -> Vec<Value> {
    let list = setup.run(&["list", "--json"]);
    succeeded(&list);
    serde_json::from_str(&stdout(&list)).expect("json")
}

#[test]
fn every_store_is_listed() {
    let setup = setup();
    succeeded(&setup.pull());
    let listed = listed(&setup);
    let names: Vec<_> = listed
        .iter()
        .map(|model| [&model["name"], &model["store"]].map(|field| field.as_str().expect("a text")))
        .collect();
    let expected =
        [["org/tiny", "hub"], ["org/half", "lmstudio"], ["org/studio", "lmstudio"], ["lake:3b", "ollama"]];
    assert_eq!(names, expected);
    let studio = &listed[2];
    assert_eq!(studio["path"], studio["folder"]);
    assert!(studio["problem"].is_null() && studio["revision"].is_null(), "{studio}");
    assert!(listed[1]["problem"].as_str().expect("a text").contains("tokenizer.json"), "{}", listed[1]);
    assert!(listed[3]["path"].as_str().expect("a text").ends_with(BLOB), "{}", listed[3]);
    let table = stdout(&setup.run(&["list"]));
    for words in ["Hub cache", "LM Studio", "Ollama", "lake:3b"] {
        assert!(table.contains(words), "{words} in {table}");
    }
    let overview = setup.run(&["generate", "-m", "stud", "-p", "x"]);
    failed(&overview, &["did you mean org/studio?"]);
    let mut shell = setup.command(&["--", "mlx", "chat", "-m", "la"]);
    let completed = shell.env("MLX_COMPLETE", "fish").output().expect("the program starts");
    assert_eq!(stdout(&completed).trim(), "lake:3b");
}

#[test]
fn a_model_of_lm_studio_runs_by_name() {
    let setup = setup();
    let tokens = |model: &str| {
        let output = setup.offline(&["generate", model, "The", "--seed", "1", "--max-tokens", "8", "--json"]);
        succeeded(&output);
        serde_json::from_str::<Value>(&stdout(&output)).expect("json")["tokens"].clone()
    };
    assert_eq!(tokens("org/studio"), tokens(model_folder(MODEL).to_str().expect("utf-8")));
    let home = format!("HOME={}", setup.home.path().display());
    let program = ["env", &home, env!("CARGO_BIN_EXE_mlx"), "serve", "-m", "org/studio"];
    let server = Server::start_on(&program, &model_folder("llama-f32"), &[]);
    assert_eq!(server.get("/v1/models/org/studio").body["id"], "org/studio");
}

#[test]
fn models_of_other_programs_are_never_removed() {
    let setup = setup();
    for (name, words) in [
        ("org/studio", ["LM Studio", "My Models"]),
        ("org/half", ["LM Studio", "My Models"]),
        ("lake:3b", ["Ollama", "`ollama rm lake:3b`"]),
        ("org/none", ["org/none", "mlx list"]),
    ] {
        failed(&setup.run(&["rm", name]), &words);
    }
    // The first name is not removed if the second cannot be.
    succeeded(&setup.pull());
    failed(&setup.run(&["rm", "org/tiny", "lake:3b"]), &["Ollama"]);
    failed(&setup.run(&["rm", "org/tiny:Q4_0"]), &["`mlx rm org/tiny`"]);
    assert_eq!(listed(&setup).len(), 4);
}

#[test]
fn a_model_of_both_is_removed_only_from_the_cache() {
    let setup = setup();
    symlink(model_folder(MODEL), setup.home.path().join(".lmstudio/models/org/tiny")).expect("links");
    succeeded(&setup.pull());
    let removed = setup.run(&["rm", "org/tiny"]);
    succeeded(&removed);
    assert!(stderr(&removed).contains("removed org/tiny"));
    failed(&setup.run(&["rm", "org/tiny"]), &["LM Studio"]);
    let listed = listed(&setup);
    assert!(listed.iter().any(|model| model["name"] == "org/tiny" && model["store"] == "lmstudio"));
}
