//! The files that a download fetches, and their folders.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use mlx_core::ModelFolder;
use mlx_tests::golden_folder;
use mlx_tests::hub::Hub;
use serde_json::{Value, json};

use super::{Setup, failed, stderr, stdout, succeeded};

/// Returns the names of the files in the snapshot.
fn fetched(setup: &Setup) -> BTreeSet<String> {
    let files = mlx_hub::files(&setup.snapshot());
    let name =
        |path: &Path| path.strip_prefix(setup.snapshot()).expect("in it").to_str().expect("utf-8").to_owned();
    files.iter().map(|path| name(path)).collect()
}

#[test]
fn every_file_that_changes_an_answer_is_fetched_and_no_other() {
    let setup = Setup::with("llama-f32");
    let own = [
        "added_tokens.json",
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "special_tokens_map.json",
        "video_preprocessor_config.json",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ];
    let others = [
        "2_Dense/pytorch_model.bin",
        "onnx/config.json",
        "model-00001-of-00002.safetensors",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
    ];
    for file in own.iter().chain(&others) {
        setup.hub.behave().files.insert((*file).to_owned(), b"{}".to_vec());
    }
    succeeded(&setup.pull());
    let mut expected: BTreeSet<String> = own.map(str::to_owned).into();
    expected.extend(
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"].map(str::to_owned),
    );
    assert_eq!(fetched(&setup), expected);
    assert_eq!(std::fs::read(setup.snapshot().join("2_Dense/model.safetensors")).expect("a file"), b"{}");
    succeeded(&setup.offline(&["pull", "org/tiny"]));
}

/// Conversions of Qwen3-ASR have no tokenizer.json.
#[test]
fn a_vocabulary_with_merges_is_fetched_instead_of_a_tokenizer() {
    let setup = Setup::with("llama-f32");
    {
        let mut hub = setup.hub.behave();
        hub.files.remove("tokenizer.json").expect("the fixture has one");
        hub.files.insert("vocab.json".to_owned(), b"{\"a\": 0}".to_vec());
    }
    let lacks_tokenizer = || stderr(&setup.pull()).contains("it has no tokenizer.json on the Hub");
    assert!(lacks_tokenizer());
    setup.hub.behave().files.insert("merges.txt".to_owned(), Vec::new());
    assert!(!lacks_tokenizer());
    let fetched = fetched(&setup);
    assert!(fetched.contains("vocab.json") && fetched.contains("merges.txt"), "{fetched:?}");
    succeeded(&setup.offline(&["pull", "org/tiny"]));
}

#[test]
fn a_downloaded_model_prepares_pictures_as_its_folder_does() {
    let folder = golden_folder().join("pictures/qwen3_vl-f32");
    let setup = Setup { hub: Hub::start(&folder), home: tempfile::tempdir().expect("a temporary folder") };
    succeeded(&setup.pull());
    let images = |folder: &Path| ModelFolder::open(folder).expect("it can be read").images.expect("it sees");
    assert_eq!(images(&setup.snapshot()), images(&folder));
}

/// mlx-lm and `mlx convert` write an index even for a single file. Hub repositories also contain files that the index no longer names.
#[test]
fn the_index_decides_which_weights_are_fetched() {
    let index = r#"{"weight_map": {"a": "model.safetensors"}}"#;
    let leftover = "model-00001-of-00002.safetensors";
    let setup = Setup::with("llama-f32");
    setup.hub.behave().files.insert("model.safetensors.index.json".to_owned(), index.into());
    setup.hub.behave().files.insert(leftover.to_owned(), b"old".to_vec());
    setup.hub.behave().claimed_size = Some(1 << 60);
    failed(&setup.pull(), &["needs 1152921504.6 GB", "HF_HOME"]);
    assert!(!setup.repo().exists(), "the check must run before the first download");
    setup.hub.behave().claimed_size = None;
    succeeded(&setup.pull());
    assert!(fetched(&setup).contains("model.safetensors") && !fetched(&setup).contains(leftover));
    // An index of shards that were merged into one file.
    let merged = Setup::with("llama-f32");
    let index = index.replace("model.", "model-00001-of-00001.");
    merged.hub.behave().files.insert("model.safetensors.index.json".to_owned(), index.into());
    succeeded(&merged.pull());
    assert!(fetched(&merged).contains("model.safetensors"));
    succeeded(&merged.offline(&["inspect", "org/tiny"]));
}

#[test]
fn shards_without_an_index_are_fetched() {
    let setup = Setup::new();
    setup.hub.behave().files.remove("model.safetensors.index.json");
    let shards = setup.shards();
    assert!(shards.len() > 1, "{shards:?}");
    succeeded(&setup.pull());
    assert!(shards.iter().all(|shard| fetched(&setup).contains(shard)), "{:?}", fetched(&setup));
    succeeded(&setup.offline(&["inspect", "org/tiny"]));
}

/// The values are not expanded by a shell, for example because a service manager set them.
#[test]
fn folders_in_variables_are_expanded_as_other_hub_tools_do() {
    let setup = Setup::with("llama-f32");
    succeeded(&setup.pull());
    let root = setup.home.path().parent().expect("a folder").to_path_buf();
    let name = setup.home.path().file_name().expect("a name").to_str().expect("utf-8");
    let check = |variables: &[(&str, String)]| {
        let mut command: Command = setup.command(&["pull", "--offline", "org/tiny"]);
        command.env("HOME", &root).env("PLACE", setup.home.path()).env_remove("HF_HOME");
        command.env_remove("XDG_CACHE_HOME").envs(variables.iter().map(|(name, value)| (name, value)));
        let output = command.output().expect("it starts");
        succeeded(&output);
        assert_eq!(Path::new(stdout(&output).trim()), setup.snapshot(), "{variables:?}");
    };
    for home in ["$PLACE".to_owned(), "${PLACE}".to_owned(), format!("~/{name}"), format!("$HOME/{name}")] {
        check(&[("HF_HOME", home.clone())]);
        check(&[("HF_HUB_CACHE", format!("{home}/hub"))]);
        check(&[("HUGGINGFACE_HUB_CACHE", format!("{home}/hub"))]);
    }
    std::os::unix::fs::symlink(setup.home.path(), setup.home.path().join("huggingface")).expect("links");
    let mut command = setup.command(&["pull", "--offline", "org/tiny"]);
    command.env("PLACE", setup.home.path()).env_remove("HF_HOME").env("XDG_CACHE_HOME", "$PLACE");
    succeeded(&command.output().expect("it starts"));
    // The file with the token.
    std::fs::write(setup.home.path().join("secret"), "from-a-file").expect("writes");
    let mut command = setup.command(&["pull", "org/tiny"]);
    command.env("PLACE", setup.home.path()).env("HF_TOKEN_PATH", "${PLACE}/secret");
    succeeded(&command.output().expect("it starts"));
    let last = setup.hub.behave().requests.last().cloned().expect("a request");
    assert_eq!(last.authorization.as_deref(), Some("Bearer from-a-file"));
    // The program's own variable.
    let mut command = setup.command(&["inspect", "--json"]);
    command.env("PLACE", setup.snapshot()).env("MLX_MODEL", "${PLACE}");
    succeeded(&command.output().expect("it starts"));
}

/// MLX's conversions of Whisper contain only the config and the weights.
#[test]
fn a_whisper_model_without_a_tokenizer_gets_that_of_the_original() {
    let setup = Setup {
        hub: Hub::start(&golden_folder().join("speech/whisper-q4-npz")),
        home: tempfile::tempdir().expect("a temporary folder"),
    };
    let tokenizer = {
        let mut hub = setup.hub.behave();
        let files = &mut hub.files;
        files.retain(|file, _| file == "config.json" || file == "weights.npz" || file == "tokenizer.json");
        let mut config: Value = serde_json::from_slice(&files["config.json"]).expect("json");
        config["n_vocab"] = json!(51_865);
        files.insert("config.json".to_owned(), config.to_string().into_bytes());
        files.remove("tokenizer.json").expect("the fixture has one")
    };
    failed(&setup.pull(), &["openai/whisper-base", "has no model of that name"]);
    setup.hub.behave().tokenizer = Some(tokenizer.clone());
    succeeded(&setup.pull());
    let names = ["config.json", "tokenizer.json", "weights.npz"].map(str::to_owned);
    assert_eq!(fetched(&setup), names.into());
    assert_eq!(std::fs::read(setup.snapshot().join("tokenizer.json")).expect("a file"), tokenizer);
    succeeded(&setup.offline(&["pull", "org/tiny"]));
    std::fs::remove_file(setup.snapshot().join("tokenizer.json")).expect("it is there");
    let error = ModelFolder::open(&setup.snapshot()).err().expect("it has no tokenizer").to_string();
    assert!(error.contains("tokenizer.json") && error.contains("openai/whisper-base"), "{error}");
}
