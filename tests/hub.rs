//! Models by name: downloaded from a Hub, stored in the shared cache, run offline, listed and removed.

mod hub_failures;
mod hub_files;
mod hub_gguf;
mod hub_mirrors;
mod hub_server;
mod hub_stores;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mlx_tests::hub::{COMMIT, Hub, etag};
use mlx_tests::model_folder;
use mlx_tests::server::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = "llama-mha-sharded-f32";

/// A Hub and an empty cache.
struct Setup {
    hub: Hub,
    home: TempDir,
}

impl Setup {
    fn new() -> Self {
        Self::with(MODEL)
    }

    fn with(model: &str) -> Self {
        Self { hub: Hub::start(&model_folder(model)), home: tempfile::tempdir().expect("a temporary folder") }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
        for name in [
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_TOKEN",
            "OLLAMA_MODELS",
        ] {
            command.env_remove(name);
        }
        command.args(arguments).env("HF_HOME", self.home.path()).env("HF_ENDPOINT", self.hub.endpoint());
        // The stores of other programs are in the home folder.
        command.env("HOME", self.home.path());
        command.env_remove("HF_HUB_OFFLINE").env_remove("MLX_MODEL").env("no_proxy", "*");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("the program starts")
    }

    /// Runs the program offline.
    fn offline(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.env("HF_HUB_OFFLINE", "1").env("HF_ENDPOINT", "http://127.0.0.1:9");
        command.output().expect("the program starts")
    }

    fn pull(&self) -> Output {
        self.run(&["pull", "org/tiny"])
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    /// Returns the names of the shards, which are the only large files needed.
    fn shards(&self) -> Vec<String> {
        let behavior = self.hub.behave();
        behavior.files.keys().filter(|file| file.ends_with(".safetensors")).cloned().collect()
    }

    fn size(&self, file: &str) -> usize {
        self.hub.behave().files[file].len()
    }

    fn blob(&self, file: &str) -> PathBuf {
        self.repo().join("blobs").join(etag(file, &self.hub.behave().files[file]))
    }

    /// Checks that the cache has the files of the Hub, under the names that the Hub's tools expect.
    fn expect_complete(&self) {
        assert_eq!(fs::read_to_string(self.repo().join("refs/main")).expect("a reference"), COMMIT);
        let behavior = self.hub.behave();
        let files = mlx_hub::files(&self.snapshot());
        for path in &files {
            let name = path.strip_prefix(self.snapshot()).expect("in the folder").to_str().expect("utf-8");
            let blobs = "../".repeat(2 + name.matches('/').count()) + "blobs";
            let etag = etag(name, &behavior.files[name]);
            assert_eq!(fs::read_link(path).expect("a link"), Path::new(&blobs).join(etag));
            assert_eq!(fs::read(path).expect("a file"), behavior.files[name], "{name}");
        }
        let needed = behavior.files.keys().filter(|file| {
            mlx_hub::affects_output(file) || file.ends_with(".safetensors") && !file.contains('/')
        });
        assert_eq!(files.len(), needed.count(), "the cache must have no other files");
        let blobs = fs::read_dir(self.repo().join("blobs")).expect("a folder");
        assert!(blobs.flatten().all(|blob| !blob.file_name().to_string_lossy().contains("incomplete")));
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is utf-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are utf-8")
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

/// Checks that the program failed with a message that contains these words.
#[track_caller]
fn failed(output: &Output, words: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} in {message}");
    }
}

/// Waits until a condition holds.
fn wait_for(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !what() {
        assert!(Instant::now() < end, "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_downloaded_model_runs_offline_by_name() {
    let setup = Setup::new();
    let pulled = setup.pull();
    succeeded(&pulled);
    assert_eq!(stdout(&pulled).trim(), setup.snapshot().to_str().expect("utf-8"));
    setup.expect_complete();
    let generate = |model: &str| {
        let output = setup.offline(&[
            "generate",
            "-m",
            model,
            "-p",
            "The",
            "--seed",
            "1",
            "--max-tokens",
            "8",
            "--json",
        ]);
        succeeded(&output);
        serde_json::from_str::<Value>(&stdout(&output)).expect("json")["tokens"].clone()
    };
    let folder = generate(model_folder(MODEL).to_str().expect("utf-8"));
    for name in ["org/tiny", "org/tiny@main", &format!("org/tiny@{COMMIT}")] {
        assert_eq!(generate(name), folder);
    }
    succeeded(&setup.offline(&["inspect", "-m", "org/tiny"]));
    succeeded(&setup.offline(&["score", "-m", "org/tiny", "-t", "The keeper"]));
    let checked = setup.offline(&["pull", "org/tiny"]);
    succeeded(&checked);
    assert!(stderr(&checked).contains("complete"));
    // Online again: all files are cached, so only the file list is requested.
    let before = setup.hub.behave().requests.len();
    succeeded(&setup.pull());
    assert_eq!(setup.hub.behave().requests.len(), before + 1);
}

#[test]
fn a_server_offers_a_downloaded_model_by_name() {
    let setup = Setup::with("llama-f32");
    succeeded(&setup.pull());
    let home = format!("HF_HOME={}", setup.home.path().display());
    let program =
        ["env", "-u", "HF_HUB_CACHE", &home, env!("CARGO_BIN_EXE_mlx"), "serve", "-m", "org/tiny@main"];
    let server = Server::start_on(&program, &model_folder("llama-f32"), &["-m", "other=org/tiny@main"]);
    let models = server.get("/v1/models").body;
    let names: Vec<_> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["org/tiny", "tiny", "other"]);
    let text = |model: &str| {
        let request = json!({ "model": model, "prompt": "The keeper", "max_tokens": 8, "temperature": 0 });
        server.post("/v1/completions", &request).body["choices"][0]["text"].clone()
    };
    assert!(text("org/tiny").is_string());
    assert_eq!([text("org/tiny"), text("other")], [text("tiny"), text("tiny")]);
    // The name on the command line is an alias of the model's own name.
    for name in ["org/tiny", "org/tiny@main"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).body["id"], "org/tiny");
    }
}

#[test]
fn a_missing_model_is_not_downloaded_implicitly() {
    let setup = Setup::new();
    for arguments in [
        &["generate", "-m", "org/tiny", "-p", "x"][..],
        &["score", "-m", "org/tiny", "-t", "x"],
        &["chat", "-m", "org/tiny"],
        &["inspect", "-m", "org/tiny"],
        &["serve", "-m", "org/tiny"],
        &["serve", "-m", "name=org/tiny"],
    ] {
        failed(&setup.run(arguments), &["org/tiny", "mlx pull org/tiny"]);
    }
    failed(&setup.offline(&["pull", "org/tiny"]), &["org/tiny", "cache"]);
    assert!(setup.hub.behave().requests.is_empty());
}

#[test]
fn a_hub_cannot_write_outside_the_cache() {
    let setup = Setup::new();
    for commit in ["../../../../out", "..", ".x", ""] {
        setup.hub.behave().commit = Some(commit.to_owned());
        failed(&setup.pull(), &["commit"]);
    }
    setup.hub.behave().commit = None;
    let index = r#"{"weight_map": {"a": "../../../../../out.safetensors"}}"#;
    setup.hub.behave().files.insert("model.safetensors.index.json".to_owned(), index.into());
    failed(&setup.pull(), &["weight_map"]);
    assert!(!setup.repo().join("refs/main").exists());
}

#[test]
fn unsupported_formats_are_refused_before_the_download() {
    let setup = Setup::new();
    setup.hub.behave().files.retain(|file, _| !file.contains("safetensors") && !file.contains("gguf"));
    failed(&setup.pull(), &["no safetensors files and no GGUF files", "mlx-community"]);
    assert!(!setup.repo().exists());
}

#[test]
fn a_model_of_an_unknown_family_is_downloaded_with_a_warning() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().files.insert("config.json".to_owned(), br#"{"model_type": "unheard-of"}"#.to_vec());
    let output = setup.pull();
    succeeded(&output);
    assert!(stderr(&output).contains("cannot run the model") && stderr(&output).contains("unheard-of"));
    let listed = setup.run(&["list"]);
    assert!(stdout(&listed).contains("not ready: config.json"), "{}", stdout(&listed));
}

#[test]
fn models_are_listed_and_removed() {
    let setup = Setup::new();
    succeeded(&setup.run(&["list"]));
    failed(&setup.run(&["rm", "org/tiny"]), &["org/tiny", "mlx list"]);
    succeeded(&setup.pull());
    succeeded(&setup.run(&["pull", "org/tiny", "--revision", "refs/pr/1"]));
    let text = stdout(&setup.run(&["list"]));
    assert!(text.contains("org/tiny") && text.contains("main refs/pr/1") && text.contains("ready"), "{text}");
    let list = stdout(&setup.run(&["list", "--json"]));
    let list: Value = serde_json::from_str(&list).expect("json");
    let bytes: u64 = fs::read_dir(setup.repo().join("blobs"))
        .expect("a folder")
        .map(|blob| blob.expect("a file").metadata().expect("readable").size())
        .sum();
    assert_eq!(list[0]["name"], "org/tiny");
    assert_eq!(list[0]["bytes"], bytes);
    assert_eq!(list[0]["revision"], COMMIT);
    assert_eq!(list[0]["abilities"], serde_json::json!(["chat"]));
    assert!(list[0]["problem"].is_null());
    let removed = setup.run(&["rm", "org/tiny"]);
    succeeded(&removed);
    assert!(stderr(&removed).contains("removed org/tiny"));
    assert!(!setup.repo().exists());
    failed(&setup.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["mlx pull org/tiny"]);
}
