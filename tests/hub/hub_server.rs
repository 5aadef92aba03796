//! Downloads for the clients of a server, by `POST /api/pull`: progress, cancellation, errors, and use of the model by name.

use std::fs;
use std::time::Duration;

use mlx_tests::hub::COMMIT;
use mlx_tests::model_folder;
use mlx_tests::server::{Reply, Server};
use serde_json::{Value, json};

use super::{Setup, wait_for};

impl Setup {
    /// Starts a server with this cache and Hub.
    fn serve(&self, arguments: &[&str]) -> Server {
        let home = |variable: &str| format!("{variable}={}", self.home.path().display());
        let (home, cache, endpoint) =
            (home("HOME"), home("HF_HOME"), format!("HF_ENDPOINT={}", self.hub.endpoint()));
        let program = ["env", "-u", "HF_HUB_CACHE", "-u", "HF_TOKEN", "-u", "HF_HUB_OFFLINE", "no_proxy=*"];
        let program =
            [&program[..], &[&home, &cache, &endpoint, env!("CARGO_BIN_EXE_mlx"), "serve"]].concat();
        Server::start_on(&program, &model_folder("llama-f32"), arguments)
    }

    fn serve_downloads(&self) -> Server {
        self.serve(&["--all-models", "--allow-pull"])
    }
}

fn pull(server: &Server, model: &str) -> Reply {
    server.post("/api/pull", &json!({ "model": model, "stream": false }))
}

/// Returns the lines of a streamed download.
fn lines(server: &Server, model: &str) -> Vec<Value> {
    let text = server.exchange("/api/pull", &json!({ "model": model }).to_string());
    text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

#[test]
fn a_downloaded_model_is_used_by_name_at_once() {
    let setup = Setup::with("llama-f32");
    let server = setup.serve_downloads();
    assert_eq!(server.get("/v1/models").body["allows_pull"], true);
    assert_eq!(server.get("/v1/models/org/tiny").status, 404);
    setup.hub.behave().pause = Duration::from_millis(20);
    let lines = lines(&server, "hf.co/org/tiny:latest");
    setup.expect_complete();
    assert_eq!(lines[0], json!({ "status": "pulling manifest" }));
    assert_eq!(lines[lines.len() - 1], json!({ "status": "success", "model": "org/tiny" }));
    let bytes = &lines[1..lines.len() - 1];
    let total = bytes[0]["total"].as_u64().expect("a size");
    let completed = |line: &Value| line["completed"].as_u64().expect("a size");
    assert!(bytes.len() > 2 && bytes.is_sorted_by_key(completed), "{bytes:?}");
    assert_eq!(completed(&bytes[bytes.len() - 1]), total);
    for line in bytes {
        assert_eq!((&line["digest"], &line["total"]), (&json!(format!("sha1:{COMMIT}")), &json!(total)));
    }
    let request = json!({ "model": "org/tiny", "prompt": "The keeper", "max_tokens": 4 });
    assert_eq!(server.post("/v1/completions", &request).status, 200);
    // All files are there, so the next download is only a check.
    assert_eq!(pull(&server, "org/tiny").body["model"], "org/tiny");
}

#[test]
fn a_client_that_leaves_cancels_and_the_next_one_continues() {
    let setup = Setup::with("llama-f32");
    let server = setup.serve_downloads();
    let shard = &setup.shards()[0];
    let partial = setup.blob(shard).with_added_extension("incomplete");
    setup.hub.behave().pause = Duration::from_millis(50);
    let client = server.connect("/api/pull", &json!({ "model": "org/tiny" }));
    wait_for(|| fs::metadata(&partial).is_ok_and(|file| file.len() > 0));
    let second = pull(&server, "org/other");
    assert_eq!(second.status, 429);
    assert!(
        second.body["error"].as_str().expect("text").contains("org/tiny is being downloaded"),
        "{}",
        second.body
    );
    drop(client);
    wait_for(|| server.log().contains("a download ended early"));
    let arrived = fs::metadata(&partial).expect("it remains").len() as usize;
    assert!(arrived < setup.size(shard), "the rest was not downloaded");
    setup.hub.behave().pause = Duration::ZERO;
    let before = setup.hub.behave().requests.len();
    assert_eq!(pull(&server, "org/tiny").status, 200);
    setup.expect_complete();
    let requests = setup.hub.behave().requests[before..].to_vec();
    assert!(requests.iter().any(|request| request.range == Some(format!("bytes={arrived}-"))));
}

#[test]
fn a_stopping_server_ends_the_download() {
    let setup = Setup::with("llama-f32");
    let mut server = setup.serve_downloads();
    let partial = setup.blob(&setup.shards()[0]).with_added_extension("incomplete");
    setup.hub.behave().pause = Duration::from_millis(100);
    let _client = server.connect("/api/pull", &json!({ "model": "org/tiny" }));
    wait_for(|| fs::metadata(&partial).is_ok_and(|file| file.len() > 0));
    server.terminate();
    assert!(server.wait().success());
    assert!(partial.exists(), "it ended before the end of the download");
}

#[test]
fn errors_of_downloads_name_the_reason() {
    let setup = Setup::with("llama-f32");
    let server = setup.serve_downloads();
    let error = |reply: &Reply| reply.body["error"].as_str().unwrap_or_default().to_owned();
    for (model, status, words) in [
        ("llama3.2", 400, "try mlx-community/Llama-3.2-3B-Instruct-4bit"),
        ("../secret", 400, "not the name of a model on the Hub"),
        ("org/none", 502, "org/none: http://127.0.0.1"),
        ("org/tiny:Q4_K_M", 502, "Q4_K_M"),
    ] {
        let reply = pull(&server, model);
        assert!(reply.status == status && error(&reply).contains(words), "{model}: {}", reply.body);
    }
    let streamed = lines(&server, "org/none");
    assert_eq!(streamed.len(), 2);
    assert!(streamed[1]["error"].as_str().expect("text").contains("check the spelling"), "{streamed:?}");
    assert_eq!(server.post("/api/pull", &json!({ "model": "org/tiny", "insecure": true })).status, 400);
    // A model that cannot run is refused before its weights are downloaded, without folders of this machine.
    setup.hub.behave().files.insert("config.json".to_owned(), br#"{"model_type": "unheard-of"}"#.to_vec());
    let unsupported = pull(&server, "org/tiny");
    assert!(
        error(&unsupported).contains("this server cannot run the model: config.json"),
        "{}",
        unsupported.body
    );
    assert_eq!(setup.hub.sent(&setup.shards()[0]), 0);
    assert!(server.log().contains("a download ended early"));
}

#[test]
fn downloads_are_off_by_default() {
    let setup = Setup::with("llama-f32");
    let server = setup.serve(&["--all-models"]);
    let refused = pull(&server, "org/tiny");
    assert_eq!(refused.status, 501);
    assert!(refused.body["error"].as_str().expect("text").contains("--allow-pull"), "{}", refused.body);
    assert_eq!(server.get("/v1/models").body["allows_pull"], false);
    assert!(setup.hub.behave().requests.is_empty());
}

#[test]
fn only_clients_of_the_server_may_download() {
    let setup = Setup::with("llama-f32");
    let server = setup.serve(&["--all-models", "--allow-pull", "--api-key", "k"]);
    let request = json!({ "model": "org/tiny", "stream": false });
    assert_eq!(server.post("/api/pull", &request).status, 401);
    let headers = [("x-api-key", "k"), ("origin", "http://evil.example")];
    assert_eq!(server.send("POST", "/api/pull", &headers, &request).status, 403);
    assert!(setup.hub.behave().requests.is_empty());
    assert_eq!(server.post_as("k", "/api/pull", &request).status, 200);
}
