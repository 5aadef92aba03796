//! Models by name: fetched from a hub that cuts connections, sends wrong bytes or refuses, kept in the cache that the hub's tools share, run
//! without the network, listed and removed.

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

/// A hub and an empty cache.
struct Place {
    hub: Hub,
    home: TempDir,
}

impl Place {
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

    /// Without the network.
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

    /// The shards, which are all large files that are needed.
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

    /// What is in the cache is what the hub has, under the names that the hub's tools expect.
    fn expect_whole(&self) {
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

/// It failed, and said these words.
#[track_caller]
fn failed(output: &Output, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} in {said}");
    }
}

/// Waits until something is there.
fn wait_for(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !what() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pulled_model_runs_by_its_name_without_the_network() {
    let place = Place::new();
    let pulled = place.pull();
    succeeded(&pulled);
    assert_eq!(stdout(&pulled).trim(), place.snapshot().to_str().expect("utf-8"));
    place.expect_whole();
    let generate = |model: &str| {
        let output = place.offline(&[
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
    succeeded(&place.offline(&["inspect", "-m", "org/tiny"]));
    succeeded(&place.offline(&["score", "-m", "org/tiny", "-t", "The keeper"]));
    let checked = place.offline(&["pull", "org/tiny"]);
    succeeded(&checked);
    assert!(stderr(&checked).contains("complete"));
    // Once more with the network: everything is there, so nothing is fetched but the list.
    let before = place.hub.behave().requests.len();
    succeeded(&place.pull());
    assert_eq!(place.hub.behave().requests.len(), before + 1);
}

#[test]
fn a_server_has_a_pulled_model_under_its_name() {
    let place = Place::with("llama-f32");
    succeeded(&place.pull());
    let home = format!("HF_HOME={}", place.home.path().display());
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
fn a_name_that_is_not_there_is_not_fetched_unasked() {
    let place = Place::new();
    for arguments in [
        &["generate", "-m", "org/tiny", "-p", "x"][..],
        &["score", "-m", "org/tiny", "-t", "x"],
        &["chat", "-m", "org/tiny"],
        &["inspect", "-m", "org/tiny"],
        &["serve", "-m", "org/tiny"],
        &["serve", "-m", "name=org/tiny"],
    ] {
        failed(&place.run(arguments), &["org/tiny", "mlx pull org/tiny"]);
    }
    failed(&place.offline(&["pull", "org/tiny"]), &["org/tiny", "cache"]);
    assert!(place.hub.behave().requests.is_empty());
}

#[test]
fn cut_connections_are_resumed() {
    let place = Place::with("llama-f32");
    let shard = &place.shards()[0];
    (place.hub.behave().cuts, place.hub.behave().cut_after) = (3, place.size(shard) / 5);
    succeeded(&place.pull());
    place.expect_whole();
    assert_eq!(place.hub.sent(shard), place.size(shard), "no byte was sent twice");
    let requests = place.hub.behave().requests.clone();
    assert_eq!(requests.iter().filter(|request| request.range.is_some()).count(), 6, "redirected, each");
}

#[test]
fn a_hub_without_ranges_sends_all_again() {
    let place = Place::with("llama-f32");
    let shard = &place.shards()[0];
    {
        let mut behavior = place.hub.behave();
        (behavior.cuts, behavior.cut_after, behavior.ignores_ranges) = (1, 10_000, true);
    }
    succeeded(&place.pull());
    place.expect_whole();
    assert_eq!(place.hub.sent(shard), place.size(shard) + 10_000);
}

#[test]
fn a_lost_network_leaves_what_has_arrived() {
    let place = Place::with("llama-f32");
    let shard = &place.shards()[0];
    (place.hub.behave().cuts, place.hub.behave().cut_after) = (1, 20_000);
    place.hub.behave().pause = Duration::from_millis(5);
    let child = place.start(&["pull", "org/tiny"]);
    wait_for(|| place.hub.sent(shard) == 20_000);
    place.hub.behave().closed = Some((403, ""));
    failed(&child.wait_with_output().expect("it ends"), &["org/tiny", "refuses"]);
    failed(&place.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["incomplete", "mlx pull org/tiny"]);
    place.hub.behave().closed = None;
    succeeded(&place.pull());
    place.expect_whole();
    assert_eq!(place.hub.sent(shard), place.size(shard));
}

/// The child gets this signal when it has written some of the first shard; then another pull does the rest.
fn ended_by(signal: &str) -> Output {
    let place = Place::with("llama-f32");
    let shard = &place.shards()[0];
    place.hub.behave().pause = Duration::from_millis(50);
    let child = place.start(&["pull", "org/tiny"]);
    let partial = place.blob(shard).with_added_extension("incomplete");
    wait_for(|| fs::metadata(&partial).is_ok_and(|file| file.len() > 0));
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.expect("there is a kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    place.hub.behave().pause = Duration::ZERO;
    let arrived = fs::metadata(&partial).expect("it is kept").len();
    let sent = place.hub.sent(shard);
    let before = place.hub.behave().requests.len();
    succeeded(&place.pull());
    place.expect_whole();
    let ranges: Vec<_> =
        place.hub.behave().requests[before..].iter().filter_map(|request| request.range.clone()).collect();
    assert_eq!(ranges[0], format!("bytes={arrived}-"));
    // What the first one was still being sent does not count.
    assert!(place.hub.sent(shard) - sent <= place.size(shard) - arrived as usize + 8192);
    output
}

#[test]
fn a_killed_pull_is_resumed() {
    ended_by("-KILL");
}

#[test]
fn an_interrupted_pull_says_that_it_resumes() {
    let output = ended_by("-INT");
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("mlx pull org/tiny"), "{}", stderr(&output));
}

#[test]
fn damage_is_noticed_wherever_it_is() {
    let place = Place::with("llama-f32");
    let shard = &place.shards()[0];
    // On the way, twice: that is an error, and nothing wrong stays behind.
    place.hub.behave().wrong = 2;
    failed(&place.pull(), &[shard, "checksum"]);
    assert!(!place.blob(shard).exists() && !place.blob(shard).with_added_extension("incomplete").exists());
    // Once: it is fetched again.
    place.hub.behave().wrong = 1;
    let output = place.pull();
    succeeded(&output);
    assert!(stderr(&output).contains("damaged"));
    place.expect_whole();
    // In the cache, large and small.
    for file in [shard, "tokenizer.json"] {
        let blob = place.blob(file);
        let mut bytes = fs::read(&blob).expect("a file");
        bytes[7] ^= 1;
        fs::write(&blob, bytes).expect("writes");
        failed(&place.offline(&["pull", "org/tiny"]), &[file, "damaged"]);
        succeeded(&place.pull());
        place.expect_whole();
    }
    // In what an earlier try has left; and too much of it.
    for left in [vec![1; 5000], vec![1; place.size(shard) + 1]] {
        fs::remove_file(place.blob(shard)).expect("it is there");
        fs::write(place.blob(shard).with_added_extension("incomplete"), left).expect("writes");
        succeeded(&place.pull());
        place.expect_whole();
    }
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let place = Place::new();
    place.hub.behave().pause = Duration::from_millis(10);
    let children = [(); 3].map(|()| place.start(&["pull", "org/tiny"]));
    for child in children {
        succeeded(&child.wait_with_output().expect("it ends"));
    }
    place.expect_whole();
    for shard in place.shards() {
        assert_eq!(place.hub.sent(&shard), place.size(&shard), "each byte was sent once");
    }
}

#[test]
fn refusals_say_what_would_help() {
    let place = Place::new();
    failed(&place.run(&["pull", "org/tyni"]), &["org/tyni", "no model of that name", "spelling", "HF_TOKEN"]);
    failed(&place.run(&["pull", "org/tiny@v9"]), &["no revision v9"]);
    for (status, code, words) in [
        (401, "GatedRepo", ["gated", "terms"]),
        (403, "GatedRepo", ["gated", "HF_TOKEN"]),
        (401, "", ["no model of that name", "HF_TOKEN"]),
        (403, "", ["refuses", "403"]),
        (429, "", ["429", "HF_TOKEN"]),
        (500, "", ["500", "later"]),
        (418, "", ["418", "org/tiny"]),
    ] {
        place.hub.behave().closed = Some((status, code));
        failed(&place.pull(), &words);
    }
    place.hub.behave().closed = Some((401, ""));
    let output = place.command(&["pull", "org/tiny"]).env("HF_TOKEN", "old").output().expect("it starts");
    failed(&output, &["rejects the token"]);
    let output = place.command(&["pull", "org/tiny"]).env("HF_ENDPOINT", "http://127.0.0.1:9").output();
    failed(&output.expect("it starts"), &["http://127.0.0.1:9"]);
    for name in ["../x", "a/b/c", "org/tiny@..", ""] {
        assert_eq!(place.run(&["pull", name]).status.code(), Some(2), "{name}");
    }
    assert!(!place.repo().exists(), "nothing was written");
}

#[test]
fn a_hub_in_trouble_is_asked_again() {
    let place = Place::with("llama-f32");
    place.hub.behave().refuse = (2, 503);
    succeeded(&place.pull());
    place.expect_whole();
}

#[test]
fn a_token_is_for_the_hub_alone() {
    let place = Place::with("llama-f32");
    fs::write(place.home.path().join("token"), "from-a-file\n").expect("writes");
    succeeded(&place.pull());
    succeeded(&place.run(&["rm", "org/tiny"]));
    let output =
        place.command(&["pull", "org/tiny"]).env("HF_TOKEN", "from-a-variable").output().expect("it starts");
    succeeded(&output);
    let requests = place.hub.behave().requests.clone();
    for token in ["Bearer from-a-file", "Bearer from-a-variable"] {
        assert!(requests.iter().any(|request| request.authorization.as_deref() == Some(token)));
    }
    for request in requests {
        assert_eq!(request.authorization.is_none(), request.line.contains("/cdn/"), "{}", request.line);
    }
}

#[test]
fn a_mirror_may_leave_checksums_out_of_its_list() {
    let place = Place::with("llama-f32");
    place.hub.behave().hides_checksums = true;
    succeeded(&place.pull());
    place.expect_whole();
}

#[test]
fn a_hub_cannot_write_elsewhere() {
    let place = Place::new();
    for commit in ["../../../../out", "..", ".x", ""] {
        place.hub.behave().commit = Some(commit.to_owned());
        failed(&place.pull(), &["commit"]);
    }
    place.hub.behave().commit = None;
    let index = r#"{"weight_map": {"a": "../../../../../out.safetensors"}}"#;
    place.hub.behave().files.insert("model.safetensors.index.json".to_owned(), index.into());
    failed(&place.pull(), &["weight_map"]);
    assert!(!place.repo().join("refs/main").exists());
}

#[test]
fn other_forms_of_a_model_are_refused_before_they_are_fetched() {
    let place = Place::new();
    place.hub.behave().files.retain(|file, _| !file.contains("safetensors"));
    failed(&place.pull(), &["safetensors", "mlx-community"]);
    assert!(!place.repo().exists());
}

#[test]
fn a_model_of_no_known_family_is_fetched_with_a_note() {
    let place = Place::with("llama-f32");
    place.hub.behave().files.insert("config.json".to_owned(), br#"{"model_type": "unheard-of"}"#.to_vec());
    let output = place.pull();
    succeeded(&output);
    assert!(stderr(&output).contains("cannot run the model") && stderr(&output).contains("unheard-of"));
    let listed = place.run(&["list"]);
    assert!(stdout(&listed).contains("not ready: config.json"), "{}", stdout(&listed));
}

#[test]
fn models_are_listed_and_removed() {
    let place = Place::new();
    succeeded(&place.run(&["list"]));
    failed(&place.run(&["rm", "org/tiny"]), &["org/tiny", "mlx list"]);
    succeeded(&place.pull());
    succeeded(&place.run(&["pull", "org/tiny", "--revision", "refs/pr/1"]));
    let text = stdout(&place.run(&["list"]));
    assert!(text.contains("org/tiny") && text.contains("main refs/pr/1") && text.contains("ready"), "{text}");
    let list = stdout(&place.run(&["list", "--json"]));
    let list: Value = serde_json::from_str(&list).expect("json");
    let bytes: u64 = fs::read_dir(place.repo().join("blobs"))
        .expect("a folder")
        .map(|blob| blob.expect("a file").metadata().expect("readable").size())
        .sum();
    assert_eq!(list[0]["name"], "org/tiny");
    assert_eq!(list[0]["bytes"], bytes);
    assert_eq!(list[0]["revision"], COMMIT);
    assert!(list[0]["problem"].is_null());
    let removed = place.run(&["rm", "org/tiny"]);
    succeeded(&removed);
    assert!(stderr(&removed).contains("org/tiny is removed"));
    assert!(!place.repo().exists());
    failed(&place.run(&["generate", "-m", "org/tiny", "-p", "x"]), &["mlx pull org/tiny"]);
}
