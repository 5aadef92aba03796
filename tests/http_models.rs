//! The models of a server: loaded and unloaded, beside their adapters, and those that are broken.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use mlx_tests::{golden, golden_folder, model_copy};
use serde_json::{Value, json};

use super::SERVER;

#[test]
fn models_come_and_go() {
    let other = mlx_tests::model_folder("llama-tied-f32");
    let other = format!("other={}", other.display());
    let server = Server::start(&SERVER, &["-m", &other, "--models-budget", "800KB", "--idle-timeout", "0.5"]);
    let loaded = || {
        let list = server.get("/v1/models").body;
        let models = list["data"].as_array().expect("a list").clone();
        models.iter().filter(|it| it["loaded"] == true).map(|it| it["id"].clone()).collect::<Vec<_>>()
    };
    assert!(loaded().is_empty());
    for model in ["tiny", "other", "tiny"] {
        let answer =
            server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 2})).body;
        assert_eq!(answer["model"], model, "{answer}");
        assert_eq!(loaded(), [json!(model)], "there is room for one");
    }
    let begin = Instant::now();
    while !loaded().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it was idle");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Each adapter is a model of its own; the model beside it answers as without one, and nothing mixes in flight.
#[test]
fn an_adapter_is_a_model_of_its_own() {
    let folder = |name: &str| golden_folder().join("adapters").join(name);
    let flags = ["lora", "dora"].map(|name| format!("{name}={}", folder(name).display()));
    let server =
        Server::start(&SERVER, &["--adapter", &flags[0], "--adapter", &flags[1], "--alias", "poems=dora"]);
    let list = server.get("/v1/models").body;
    let names: Vec<Value> =
        list["data"].as_array().expect("a list").iter().map(|it| json!([it["id"], it["parent"]])).collect();
    assert_eq!(names, [json!(["tiny", null]), json!(["lora", "tiny"]), json!(["dora", "tiny"])]);
    let expected: Value = serde_json::from_slice(
        &std::fs::read(golden_folder().join("expected/adapters.json")).expect("a fixture"),
    )
    .expect("json");
    let base = golden::cases("llama-f32").cases;
    let ask = |model: &str| {
        let prompt = if model == "tiny" {
            json!(base[1].prompt_ids)
        } else {
            expected[model]["cases"][0]["prompt_ids"].clone()
        };
        let request = json!({"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 32, "ignore_eos": true,
            "return_token_ids": true});
        let answer = server.post("/v1/completions", &request).body;
        assert_eq!(answer["model"], model, "{answer}");
        answer["choices"][0]["token_ids"].clone()
    };
    std::thread::scope(|threads| {
        let ask = &ask;
        let models = ["tiny", "lora", "dora"].into_iter().cycle().take(24);
        let tasks: Vec<_> = models.map(|model| threads.spawn(move || (model, ask(model)))).collect();
        for task in tasks {
            let (model, tokens) = task.join().expect("it is answered");
            let reference = if model == "tiny" {
                json!(base[1].tokens)
            } else {
                expected[model]["cases"][0]["tokens"].clone()
            };
            assert_eq!(tokens, reference, "{model}");
        }
    });
    let alias = server.post("/v1/completions", &json!({"model": "poems", "prompt": "a", "max_tokens": 1}));
    assert_eq!((alias.status, &alias.body["model"]), (200, &json!("dora")));
    // One engine runs them all.
    assert_eq!(server.log().matches("a model was loaded").count(), 3);
    let bytes = |name: &str| {
        let page = server.metrics();
        let line =
            page.lines().find_map(|line| line.strip_prefix(&format!("mlx_used_bytes{{model=\"{name}\"}} ")));
        line.unwrap_or_else(|| panic!("{page}")).to_owned()
    };
    assert_eq!(bytes("tiny"), bytes("dora"));
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_at_the_start() {
    let lora = golden_folder().join("adapters/lora");
    let tiny = format!("tiny={}", mlx_tests::model_folder("llama-f32").display());
    let moe = format!("moe={}", golden_folder().join("adapters/lora-moe").display());
    for (flag, expected) in [
        (lora.display().to_string(), "the form is NAME=FOLDER"),
        (format!("tiny={}", lora.display()), "gives no new name"),
        (format!("x={}", mlx_tests::model_folder("llama-f32").display()), "has no adapter_config.json"),
        (moe, "this model has 2 layers"),
    ] {
        let output = std::process::Command::new(SERVER[0])
            .args(["--port", "0", "-m", &tiny, "--adapter", &flag])
            .output()
            .expect("the program starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{flag}: {text}");
    }
}

#[test]
fn a_broken_model_gives_an_error_and_never_a_stop() {
    let copy = model_copy("llama-f32");
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
    config["rms_norm_eps"] = 3e38.into();
    config["rope_scaling"] = json!({"type": "linear", "factor": 1e-38});
    std::fs::write(&path, config.to_string()).expect("it can be written");
    let server = Server::start_on(&SERVER, copy.path(), &[]);
    let mut request = json!({"prompt": [1, 2, 3, 4, 5], "max_tokens": 3});
    let complete = server.post("/v1/completions", &request);
    assert_eq!((complete.status, &complete.body["error"]["type"]), (500, &json!("server_error")));
    request["stream"] = json!(true);
    let mut connection = server.connect("/v1/completions", &request);
    connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let text = read_until_done(&mut connection);
    assert!(text.contains("data: {\"error\":{") && !text.contains("finish_reason\":\"stop"), "{text}");
}

#[test]
fn the_error_of_a_model_that_fails_to_load_hides_its_path() {
    let copy = model_copy("llama-f32");
    std::fs::remove_file(copy.path().join("model.safetensors")).expect("it was there");
    let server = Server::start_on(&SERVER, copy.path(), &[]);
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(!refused.body.to_string().contains(&*copy.path().to_string_lossy()));
    let mut eager = Server::start_on(&SERVER, copy.path(), &["--preload"]);
    assert!(!eager.wait().success(), "there is nothing to serve");
}

fn read_until_done(connection: &mut TcpStream) -> String {
    let (mut text, mut block) = (String::new(), [0; 4096]);
    connection.flush().expect("it is sent");
    while !text.contains("[DONE]") {
        let read = connection.read(&mut block).expect("more comes");
        assert_ne!(read, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&block[..read]));
    }
    text
}
