//! GGUF models of a Hub: chosen by quantization, downloaded with all shards, listed and removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::{Setup, failed, stderr, stdout, succeeded};

/// Returns a Hub with only these files. They are no models, and nothing loads them.
fn setup(files: &[&str]) -> Setup {
    let setup = Setup::new();
    let content = |file: &str| format!("GGUF of {file}").into_bytes();
    let files = files.iter().map(|file| ((*file).to_owned(), content(file)));
    setup.hub.behave().files = files.collect();
    setup
}

const FILES: [&str; 9] = [
    "README.md",
    "config.json",
    "imatrix.gguf",
    "mmproj-m-F16.gguf",
    "m-Q8_0.gguf",
    "m-Q4_K_M.gguf",
    "Q6_K/m-Q6_K-00001-of-00002.gguf",
    "Q6_K/m-Q6_K-00002-of-00002.gguf",
    "m-Q2_K-00001-of-00002.gguf",
];

/// Returns the names of the files in the snapshot. Checks their contents.
fn fetched(setup: &Setup) -> BTreeSet<String> {
    let name = |path: PathBuf| {
        let name = path.strip_prefix(setup.snapshot()).expect("in it").to_str().expect("utf-8").to_owned();
        assert_eq!(fs::read(&path).expect("a file"), setup.hub.behave().files[&name], "{name}");
        name
    };
    mlx_hub::files(&setup.snapshot()).into_iter().map(name).collect()
}

#[test]
fn a_quantization_is_downloaded_by_every_form_of_its_name() {
    let shards = ["Q6_K/m-Q6_K-00001-of-00002.gguf", "Q6_K/m-Q6_K-00002-of-00002.gguf"];
    for (name, files) in [
        ("org/tiny", &["m-Q4_K_M.gguf"][..]),
        ("org/tiny@main", &["m-Q4_K_M.gguf"]),
        ("org/tiny:Q8_0", &["m-Q8_0.gguf"]),
        ("org/tiny@main:q8_0", &["m-Q8_0.gguf"]),
        ("hf.co/org/tiny:Q8_0", &["m-Q8_0.gguf"]),
        ("org/tiny/m-Q8_0.gguf", &["m-Q8_0.gguf"]),
        ("https://huggingface.co/org/tiny/blob/main/m-Q8_0.gguf", &["m-Q8_0.gguf"]),
        ("org/tiny:Q6_K", &shards),
        ("org/tiny/m-Q6_K-00001-of-00002.gguf", &shards),
    ] {
        let setup = setup(&FILES);
        let pulled = setup.run(&["pull", name]);
        succeeded(&pulled);
        assert_eq!(fetched(&setup), files.iter().map(|file| (*file).to_owned()).collect(), "{name}");
        let path = setup.snapshot().join(files[0]);
        assert_eq!(stdout(&pulled).trim(), path.to_str().expect("utf-8"));
        let label = files[0].split('-').nth(1).expect("a label").trim_end_matches(".gguf");
        assert!(stderr(&pulled).contains(&format!(":{label} is complete")), "{}", stderr(&pulled));
        assert!(stderr(&pulled).contains("cannot run the model"), "{}", stderr(&pulled));
        // Offline, the same names give the same file.
        let checked = setup.offline(&["pull", name]);
        succeeded(&checked);
        assert_eq!(stdout(&checked), stdout(&pulled), "{name}");
    }
}

#[test]
fn a_second_quantization_joins_the_first() {
    let setup = setup(&FILES);
    for name in ["org/tiny:Q8_0", "org/tiny:Q4_K_M", "org/tiny:Q4_K_M"] {
        succeeded(&setup.run(&["pull", name]));
    }
    assert_eq!(fetched(&setup).len(), 2);
    assert_eq!(setup.hub.sent("m-Q4_K_M.gguf"), setup.size("m-Q4_K_M.gguf"), "it is downloaded once");
    let list = setup.run(&["list", "--json"]);
    let list: Value = serde_json::from_str(&stdout(&list)).expect("json");
    let names: Vec<_> = list.as_array().expect("a list").iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["org/tiny:Q4_K_M", "org/tiny:Q8_0"]);
    assert!(list[0]["problem"].as_str().is_some_and(|problem| problem.starts_with("GGUF version")), "{list}");
    failed(&setup.run(&["rm", "org/tiny:Q8_0"]), &["`mlx rm org/tiny`"]);
    assert_eq!(fetched(&setup).len(), 2);
    let removed = setup.run(&["rm", "org/tiny"]);
    succeeded(&removed);
    assert!(stderr(&removed).contains("removed org/tiny"));
    assert!(!setup.repo().exists());
}

#[test]
fn an_absent_quantization_is_an_error_that_lists_the_others() {
    let setup = setup(&FILES);
    for (name, words) in [
        ("org/tiny:Q5_0", &["\"Q5_0\"", "Q6_K, Q2_K, Q4_K_M, Q8_0"][..]),
        ("org/tiny/mmproj-m-F16.gguf", &["mmproj-m-F16.gguf", "Q8_0"]),
        ("org/tiny:Q2_K", &["m-Q2_K-00002-of-00002.gguf is missing"]),
        ("org/tiny:../x", &["is not a model name", "ORG/NAME:QUANTIZATION"]),
    ] {
        let output = setup.run(&["pull", name]);
        assert!(!output.status.success(), "{name}");
        for word in words {
            assert!(stderr(&output).contains(word), "{word:?} in {}", stderr(&output));
        }
    }
    setup.hub.behave().claimed_size = Some(1 << 60);
    failed(&setup.run(&["pull", "org/tiny"]), &["org/tiny:Q4_K_M", "needs 1152921504.6 GB", "HF_HOME"]);
    assert!(!setup.repo().exists());
    setup.hub.behave().claimed_size = None;
    // A command without a terminal does not download. It names the command that does.
    failed(&setup.run(&["generate", "-m", "org/tiny:Q8_0", "-p", "x"]), &["`mlx pull org/tiny:Q8_0`"]);
    succeeded(&setup.run(&["pull", "org/tiny"]));
    let words = ["\"Q8_0\" is not in the cache, which has Q4_K_M", "`mlx pull org/tiny:Q8_0`"];
    failed(&setup.run(&["generate", "-m", "org/tiny:Q8_0", "-p", "x"]), &words);
    failed(&setup.offline(&["pull", "org/tiny:Q8_0"]), &words);
}

#[test]
fn safetensors_precede_gguf_files() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().files.insert("m-Q4_K_M.gguf".to_owned(), b"GGUF".to_vec());
    succeeded(&setup.pull());
    assert!(fetched(&setup).contains("model.safetensors") && !fetched(&setup).contains("m-Q4_K_M.gguf"));
    succeeded(&setup.run(&["pull", "org/tiny:Q4_K_M"]));
    assert!(fetched(&setup).contains("m-Q4_K_M.gguf"));
}

#[test]
fn a_shard_is_resumed_and_its_checksum_is_verified() {
    let setup = setup(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]);
    {
        let mut behavior = setup.hub.behave();
        (behavior.cuts, behavior.cut_after, behavior.hides_checksums) = (2, 7, true);
    }
    succeeded(&setup.run(&["pull", "org/tiny"]));
    for file in fetched(&setup) {
        assert_eq!(setup.hub.sent(&file), setup.size(&file), "no byte was sent twice");
    }
    let blob = setup.blob("m-Q8_0-00002-of-00002.gguf");
    let mut bytes = fs::read(&blob).expect("a file");
    bytes[0] ^= 1;
    fs::write(&blob, bytes).expect("writes");
    failed(&setup.offline(&["pull", "org/tiny"]), &["m-Q8_0-00002-of-00002.gguf is damaged"]);
    succeeded(&setup.run(&["pull", "org/tiny"]));
    succeeded(&setup.offline(&["pull", "org/tiny"]));
}
