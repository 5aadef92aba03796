//! The stay of models in memory: every model of a folder by name, loading and unloading on request, times and pins.

use std::path::Path;

use mlx_tests::server::Server;
use mlx_tests::{copied, model_folder};
use serde_json::{Value, json};

use super::{SERVER, user, wait_until};

const MODELS: usize = 20;

/// Returns a folder with copies of a model: `m00`, `m01` and so on.
fn folder_of_models(count: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for index in 0..count {
        let copy = copied(&model_folder("llama-f32"));
        std::fs::rename(copy.path(), folder.path().join(name(index))).expect("the same file system");
    }
    folder
}

fn name(index: usize) -> String {
    format!("m{index:02}")
}

/// The memory that one model needs.
fn needed() -> u64 {
    let alone = Server::start(&SERVER, &[]);
    complete(&alone, "tiny");
    alone.figure("mlx_reserved_bytes")
}

fn serve(folder: &Path, more: &[&str]) -> Server {
    let folder = folder.to_str().expect("utf-8");
    Server::start(&SERVER, &[&["--all-models", "--models-dir", folder], more].concat())
}

fn model(server: &Server, name: &str) -> Value {
    server.get(&format!("/v1/models/{name}")).body
}

fn loaded(server: &Server) -> Vec<String> {
    let list = server.get("/v1/models").body;
    let all = list["data"].as_array().expect("a list").iter();
    all.filter(|it| it["loaded"] == true).map(|it| it["id"].as_str().expect("a name").to_owned()).collect()
}

fn complete(server: &Server, model: &str) -> Value {
    let request =
        json!({"model": model, "prompt": "The waves", "max_tokens": 4, "seed": 1, "ignore_eos": true});
    let answer = server.post("/v1/completions", &request);
    assert_eq!((answer.status, &answer.body["model"]), (200, &json!(model)), "{}", answer.body);
    answer.body["choices"][0]["text"].clone()
}

#[test]
fn twenty_models_by_turns_in_memory_for_three_lose_no_request() {
    let folder = folder_of_models(MODELS);
    let budget = (needed() * 7 / 2).to_string();
    let server = serve(folder.path(), &["--models-budget", &budget, "--loaded-models", "3"]);
    let listed = server.get("/v1/models").body;
    let names: Vec<&str> =
        listed["data"].as_array().expect("a list").iter().filter_map(|it| it["id"].as_str()).collect();
    assert!(names[0] == "tiny" && (0..MODELS).all(|it| names.contains(&name(it).as_str())), "{names:?}");
    let expected = complete(&server, "tiny");
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for turn in 0..MODELS {
                    // Each worker visits all models, in another order.
                    let index = (turn * [1, 7, 13][worker] + 5 * worker) % MODELS;
                    assert_eq!(complete(server, &name(index)), *expected);
                }
            });
        }
    });
    let loaded = loaded(&server);
    assert!((1..=3).contains(&loaded.len()), "there is memory for three: {loaded:?}");
    let unknown = server.post("/v1/completions", &json!({"model": "../m00", "prompt": "a"}));
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (404, &json!("model_not_found")));
    // A model that arrives later is found at once or after the pause between two searches.
    std::fs::rename(folder.path().join(name(0)), folder.path().join("new")).expect("the same file system");
    let asks = || server.post("/v1/completions", &json!({"model": "new", "prompt": "a", "max_tokens": 1}));
    wait_until("the new model is found", || asks().status == 200);
}

#[test]
fn a_model_stays_as_long_as_its_clients_ask() {
    let folder = folder_of_models(2);
    let server = serve(folder.path(), &["--idle-timeout", "600"]);
    let chat = |keep_alive: Value| {
        let request = json!({"model": "m00", "messages": user("Hi"), "stream": false, "keep_alive": keep_alive,
            "options": {"num_predict": 2}});
        let answer = server.post("/api/chat", &request);
        assert_eq!((answer.status, answer.find("x-ignored-fields")), (200, None), "{}", answer.body);
    };
    let left = || model(&server, "m00")["expires_in"].as_f64();
    for (keep_alive, seconds) in [(json!("5m"), 300.0), (json!(90), 90.0), (json!("1h30m"), 5400.0)] {
        chat(keep_alive);
        let left = left().expect("a time");
        assert!(left <= seconds && left > seconds - 60.0, "{left} of {seconds}");
    }
    let running = server.get("/api/ps").body;
    let end = running["models"][0]["expires_at"].as_str().expect("a time").to_owned();
    assert!(running["models"][0]["name"] == "m00" && !end.starts_with("9999"), "{running}");
    chat(json!(-1));
    assert_eq!(left(), None);
    assert!(
        server.get("/api/ps").body["models"][0]["expires_at"].as_str().expect("a time").starts_with("9999")
    );
    chat(json!(0));
    wait_until("the model is unloaded after its answer", || loaded(&server).is_empty());
    chat(json!("5m"));
    let unload = json!({"model": "m00", "keep_alive": 0});
    assert_eq!(server.post("/api/generate", &unload).body["done_reason"], "unload");
    assert_eq!((loaded(&server), model(&server, "m00")["state"].as_str()), (Vec::new(), Some("unloaded")));
    complete(&server, "m00");
    assert!(left().is_some_and(|left| left > 500.0), "the time of the server applies again");
    let refused =
        server.post("/api/chat", &json!({"model": "m00", "messages": user("Hi"), "keep_alive": "soon"}));
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[test]
fn a_pinned_model_leaves_only_on_request() {
    let folder = folder_of_models(2);
    let budget = (needed() * 3 / 2).to_string();
    let server = serve(folder.path(), &["--models-budget", &budget]);
    let pinned = server.post("/v1/models/load", &json!({"model": "m00", "pin": true, "keep_alive": 0}));
    assert_eq!(pinned.status, 200, "{}", pinned.body);
    assert_eq!((&pinned.body["state"], &pinned.body["pinned"]), (&json!("loaded"), &json!(true)));
    let busy = server.post("/v1/completions", &json!({"model": "m01", "prompt": "a"}));
    assert_eq!((busy.status, busy.find("retry-after").is_some()), (429, true), "{}", busy.body);
    assert_eq!(loaded(&server), ["m00"]);
    assert_eq!(server.post("/models/unload", &json!({"model": "m00"})).body["state"], "unloaded");
    complete(&server, "m01");
    assert_eq!(loaded(&server), ["m01"]);
    let missing = server.post("/v1/models/load", &json!({}));
    assert_eq!((missing.status, &missing.body["error"]["param"]), (400, &json!("model")));
    assert_eq!(server.post("/v1/models/load", &json!({"model": "m99"})).status, 404);
}

#[test]
fn a_model_in_use_is_unloaded_after_its_answer() {
    let server = Server::start_slow(&SERVER, &[]);
    std::thread::scope(|scope| {
        let long = json!({"prompt": "a", "max_tokens": 1500, "ignore_eos": true});
        let answer = scope.spawn({
            let (server, long) = (&server, long);
            move || server.post("/v1/completions", &long)
        });
        wait_until("it is in use", || model(&server, "tiny")["in_use"] == true);
        let asked = server.post("/v1/models/unload", &json!({"model": "tiny"})).body;
        assert_eq!((&asked["state"], &asked["in_use"]), (&json!("loaded"), &json!(true)));
        let answer = answer.join().expect("no panic");
        assert_eq!((answer.status, &answer.body["usage"]["completion_tokens"]), (200, &json!(1500)));
    });
    wait_until("it is unloaded", || loaded(&server).is_empty());
}
