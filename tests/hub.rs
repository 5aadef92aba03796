//! Models by name: downloaded from a Hub that drops connections, sends wrong bytes or refuses; stored in the shared cache, run offline, listed
//! and removed.

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
        for name in
            ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"]
        {
            command.env_remove(name);
        }
        command.args(arguments).env("HF_HOME", self.home.path()).env("HF_ENDPOINT", self.hub.endpoint());
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

    /// The shards, which are the only large files needed.
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
        for path in
            fs::read_dir(self.snapshot()).expect("a folder").map(|entry| entry.expect("readable").path())
        {
            let name = path.file_name().expect("a name").to_str().expect("utf-8");
            let etag = etag(name, &behavior.files[name]);
            assert_eq!(fs::read_link(&path).expect("a link"), Path::new("../../blobs").join(etag));
            assert_eq!(fs::read(&path).expect("a file"), behavior.files[name], "{name}");
        }
        let needed = behavior
            .files
            .keys()
            .filter(|file| mlx_core::hub::described(file) || file.ends_with(".safetensors"));
        assert_eq!(
            fs::read_dir(self.snapshot()).expect("a folder").count(),
            needed.count(),
            "and nothing else"
        );
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
        assert!(Instant::now() < end, "it did not happen");
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
    // Online again: everything is there, so only the list is requested.
    let before = setup.hub.behave().requests.len();
    succeeded(&setup.pull());
    assert_eq!(setup.hub.behave().requests.len(), before + 1);
}

#[test]
fn a_server_offers_a_downloaded_model_by_name() {
    let setup = Setup::with("llama-f32");
    succeeded(&setup.pull());
    let home = format!("HF_HOME={}", setup.home.path().display());
    let program = ["env", "-u", "HF_HUB_CACHE", &home, env!("CARGO_BIN_EXE_mlx"), "serve", "-m", "org/tiny"];
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
    assert_eq!(server.get("/v1/models/org/tiny").body["id"], "org/tiny");
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
fn cut_connections_are_resumed() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    (setup.hub.behave().cuts, setup.hub.behave().cut_after) = (3, setup.size(shard) / 5);
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard), "no byte was sent twice");
    let requests = setup.hub.behave().requests.clone();
    assert_eq!(requests.iter().filter(|request| request.range.is_some()).count(), 6, "redirected, each");
}

#[test]
fn a_hub_without_ranges_restarts_the_download() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    {
        let mut behavior = setup.hub.behave();
        (behavior.cuts, behavior.cut_after, behavior.ignores_ranges) = (1, 10_000, true);
    }
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard) + 10_000);
}

#[test]
fn a_lost_network_keeps_the_partial_download() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    (setup.hub.behave().cuts, setup.hub.behave().cut_after) = (1, 20_000);
    setup.hub.behave().pause = Duration::from_millis(5);
    let child = setup.start(&["pull", "org/tiny"]);
    wait_for(|| setup.hub.sent(shard) == 20_000);
    setup.hub.behave().closed = Some((403, ""));
    failed(&child.wait_with_output().expect("it ends"), &["org/tiny", "refuses"]);
    failed(&setup.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["incomplete", "mlx pull org/tiny"]);
    setup.hub.behave().closed = None;
    succeeded(&setup.pull());
    setup.expect_complete();
    assert_eq!(setup.hub.sent(shard), setup.size(shard));
}

/// Sends this signal to the child after it has written part of the first shard; then another pull completes the download.
fn ended_by(signal: &str) -> Output {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    setup.hub.behave().pause = Duration::from_millis(50);
    let child = setup.start(&["pull", "org/tiny"]);
    let partial = setup.blob(shard).with_added_extension("incomplete");
    wait_for(|| fs::metadata(&partial).is_ok_and(|file| file.len() > 0));
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.expect("there is a kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    setup.hub.behave().pause = Duration::ZERO;
    let arrived = fs::metadata(&partial).expect("it is kept").len();
    let sent = setup.hub.sent(shard);
    let before = setup.hub.behave().requests.len();
    succeeded(&setup.pull());
    setup.expect_complete();
    let ranges: Vec<_> =
        setup.hub.behave().requests[before..].iter().filter_map(|request| request.range.clone()).collect();
    assert_eq!(ranges[0], format!("bytes={arrived}-"));
    // Bytes still in flight to the first process do not count.
    assert!(setup.hub.sent(shard) - sent <= setup.size(shard) - arrived as usize + 8192);
    output
}

#[test]
fn a_killed_pull_is_resumed() {
    ended_by("-KILL");
}

#[test]
fn an_interrupted_pull_says_how_to_resume() {
    let output = ended_by("-INT");
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("mlx pull org/tiny"), "{}", stderr(&output));
}

#[test]
fn damage_is_detected_everywhere() {
    let setup = Setup::with("llama-f32");
    let shard = &setup.shards()[0];
    // In transit, twice: an error, and no damaged file is left.
    setup.hub.behave().wrong = 2;
    failed(&setup.pull(), &[shard, "checksum"]);
    assert!(!setup.blob(shard).exists() && !setup.blob(shard).with_added_extension("incomplete").exists());
    // In transit, once: it is downloaded again.
    setup.hub.behave().wrong = 1;
    let output = setup.pull();
    succeeded(&output);
    assert!(stderr(&output).contains("damaged"));
    setup.expect_complete();
    // In the cache, large and small.
    for file in [shard, "tokenizer.json"] {
        let blob = setup.blob(file);
        let mut bytes = fs::read(&blob).expect("a file");
        bytes[7] ^= 1;
        fs::write(&blob, bytes).expect("writes");
        failed(&setup.offline(&["pull", "org/tiny"]), &[file, "damaged"]);
        succeeded(&setup.pull());
        setup.expect_complete();
    }
    // In a partial download, also one that is too long.
    for left in [vec![1; 5000], vec![1; setup.size(shard) + 1]] {
        fs::remove_file(setup.blob(shard)).expect("it is there");
        fs::write(setup.blob(shard).with_added_extension("incomplete"), left).expect("writes");
        succeeded(&setup.pull());
        setup.expect_complete();
    }
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let setup = Setup::new();
    setup.hub.behave().pause = Duration::from_millis(10);
    let children = [(); 3].map(|()| setup.start(&["pull", "org/tiny"]));
    for child in children {
        succeeded(&child.wait_with_output().expect("it ends"));
    }
    setup.expect_complete();
    for shard in setup.shards() {
        assert_eq!(setup.hub.sent(&shard), setup.size(&shard), "each byte was sent once");
    }
}

#[test]
fn errors_of_the_hub_say_what_would_help() {
    let setup = Setup::new();
    failed(&setup.run(&["pull", "org/tyni"]), &["org/tyni", "no model of that name", "spelling", "HF_TOKEN"]);
    failed(&setup.run(&["pull", "org/tiny@v9"]), &["no revision v9"]);
    for (status, code, words) in [
        (401, "GatedRepo", ["gated", "terms"]),
        (403, "GatedRepo", ["gated", "HF_TOKEN"]),
        (401, "", ["no model of that name", "HF_TOKEN"]),
        (403, "", ["refuses", "403"]),
        (429, "", ["429", "HF_TOKEN"]),
        (500, "", ["500", "later"]),
        (418, "", ["418", "org/tiny"]),
    ] {
        setup.hub.behave().closed = Some((status, code));
        failed(&setup.pull(), &words);
    }
    setup.hub.behave().closed = Some((401, ""));
    let output = setup.command(&["pull", "org/tiny"]).env("HF_TOKEN", "old").output().expect("it starts");
    failed(&output, &["rejects the token"]);
    let output = setup.command(&["pull", "org/tiny"]).env("HF_ENDPOINT", "http://127.0.0.1:9").output();
    failed(&output.expect("it starts"), &["http://127.0.0.1:9"]);
    for name in ["../x", "a/b/c", "org/tiny@..", ""] {
        assert_eq!(setup.run(&["pull", name]).status.code(), Some(2), "{name}");
    }
    assert!(!setup.repo().exists(), "nothing was written");
}

#[test]
fn server_errors_of_the_hub_are_retried() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().refuse = (2, 503);
    succeeded(&setup.pull());
    setup.expect_complete();
}

#[test]
fn a_token_is_sent_to_the_hub_only() {
    let setup = Setup::with("llama-f32");
    fs::write(setup.home.path().join("token"), "from-a-file\n").expect("writes");
    succeeded(&setup.pull());
    succeeded(&setup.run(&["rm", "org/tiny"]));
    let output =
        setup.command(&["pull", "org/tiny"]).env("HF_TOKEN", "from-a-variable").output().expect("it starts");
    succeeded(&output);
    let requests = setup.hub.behave().requests.clone();
    for token in ["Bearer from-a-file", "Bearer from-a-variable"] {
        assert!(requests.iter().any(|request| request.authorization.as_deref() == Some(token)));
    }
    for request in requests {
        assert_eq!(request.authorization.is_none(), request.line.contains("/cdn/"), "{}", request.line);
    }
}

#[test]
fn a_mirror_may_omit_checksums() {
    let setup = Setup::with("llama-f32");
    setup.hub.behave().hides_checksums = true;
    succeeded(&setup.pull());
    setup.expect_complete();
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
    setup.hub.behave().files.retain(|file, _| !file.contains("safetensors"));
    failed(&setup.pull(), &["safetensors", "mlx-community"]);
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
    assert!(list[0]["problem"].is_null());
    let removed = setup.run(&["rm", "org/tiny"]);
    succeeded(&removed);
    assert!(stderr(&removed).contains("org/tiny is removed"));
    assert!(!setup.repo().exists());
    failed(&setup.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["mlx pull org/tiny"]);
}
