//! The models of a server: loading, unloading, adapters, and broken models.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use mlx_tests::{golden, golden_folder, model_copy};
use serde_json::{Value, json};

use super::SERVER;

#[test]
fn models_come_and_go() {
    let other = mlx_tests::model_folder("llama-tied-f32");
    let other = format!("other={}", other.display());
    // More memory than one of them needs, but less than two need.
    let alone = Server::start(&SERVER, &[]);
    complete(&alone, "tiny");
    let budget = (alone.figure("mlx_reserved_bytes") * 3 / 2).to_string();
    let server = Server::start(&SERVER, &["-m", &other, "--models-budget", &budget, "--idle-timeout", "0.5"]);
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
        assert!(begin.elapsed() < Duration::from_secs(10), "the idle model was not unloaded");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A request without sampling values uses the documented defaults, and the server reports the chat defaults to the page.
#[test]
fn the_defaults_of_each_front_end_are_those_that_it_documents() {
    let folder = model_copy("llama-f32");
    std::fs::write(folder.path().join("generation_config.json"), "{\"top_k\": 20}")
        .expect("it can be written");
    let chosen = format!("chosen={}", folder.path().display());
    let server = Server::start(&SERVER, &["-m", &chosen]);
    let messages = json!([{"role": "user", "content": "The waves"}]);
    let v1 = |model: &str, values: Value| {
        let mut body =
            json!({"model": model, "messages": messages, "seed": 7, "max_tokens": 32, "ignore_eos": true});
        body.as_object_mut().expect("an object").extend(values.as_object().cloned().expect("an object"));
        server.post("/v1/chat/completions", &body).body["choices"][0]["message"]["content"].clone()
    };
    let ollama = |model: &str| {
        let options = json!({"seed": 7, "num_predict": 32});
        let body = json!({"model": model, "messages": messages, "options": options, "stream": false});
        server.post("/api/chat", &body).body["message"]["content"].clone()
    };
    let plain = v1("tiny", json!({}));
    assert_eq!(plain, v1("tiny", json!({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0})));
    let of_ollama = ollama("tiny");
    assert_eq!(
        of_ollama,
        v1("tiny", json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "ignore_eos": false}))
    );
    assert_ne!(of_ollama, plain);
    // A checkpoint that sets its own sampling gets no other defaults.
    let expected = v1("chosen", json!({"temperature": 1, "top_k": 20, "top_p": 1, "ignore_eos": false}));
    assert_eq!(ollama("chosen"), expected);
    let list = server.get("/v1/models").body;
    let sampling = |name: &str| {
        let all = list["data"].as_array().expect("a list");
        all.iter().find(|it| it["id"] == name).expect("it is served")["chat_sampling"].clone()
    };
    assert_eq!(sampling("tiny")["temperature"], json!({"value": 0.8, "source": "default"}));
    assert_eq!(sampling("tiny")["min_p"], json!({"value": 0.05, "source": "default"}));
    assert_eq!(sampling("chosen")["temperature"], json!({"value": 1, "source": "checkpoint"}));
    assert_eq!(sampling("chosen")["top_k"], json!({"value": 20, "source": "checkpoint"}));
}

fn complete(server: &Server, model: &str) {
    let answer = server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 2}));
    assert_eq!((answer.status, &answer.body["model"]), (200, &json!(model)), "{}", answer.body);
}

/// The budgets of all loaded models sum to no more than the server's.
#[test]
fn loaded_models_share_one_budget() {
    let names = ["llama-tied-f32", "llama-bias-f32", "mistral-f32"];
    let flags = names.map(|name| format!("{name}={}", mlx_tests::model_folder(name).display()));
    let flags: Vec<&str> = flags.iter().flat_map(|flag| ["-m", flag.as_str()]).collect();
    let promised = |server: &Server, names: &[&str]| -> Vec<u64> {
        for name in names {
            complete(server, name);
        }
        let page = server.metrics();
        let budgets = page.lines().filter(|line| line.starts_with("mlx_budget_bytes{"));
        budgets.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    };
    let all = [&["tiny"], &names[..]].concat();
    let given =
        promised(&Server::start(&SERVER, &[&flags[..], &["--models-budget", "800MB"]].concat()), &all);
    assert_eq!(given.len(), 4, "all are loaded");
    assert!(given.iter().sum::<u64>() <= 800_000_000, "{given:?}");
    assert!(given.iter().all(|bytes| *bytes > 180_000_000), "the shares are not equal: {given:?}");
    // Without the flag they share the budget of a single model, up to one rounded byte each.
    let alone = promised(&Server::start(&SERVER, &[]), &["tiny"])[0];
    let shared = promised(&Server::start(&SERVER, &flags), &all);
    let sum: u64 = shared.iter().sum();
    assert!(shared.len() == 4 && sum <= alone + 4 && sum > alone / 2, "{shared:?} and {alone} alone");
}

/// After the files have changed, a second name of the folder starts a new engine, with a separate budget.
#[test]
fn an_engine_on_changed_files_has_a_budget_of_its_own() {
    let folder = model_copy("llama-f32");
    let flags = ["one", "two"].map(|name| format!("{name}={}", folder.path().display()));
    let flags = ["-m", &flags[0], "-m", &flags[1], "--models-budget", "400MB"];
    let server = Server::start(&SERVER, &flags);
    complete(&server, "tiny");
    complete(&server, "one");
    fs::write(folder.path().join("generation_config.json"), "{\"top_k\": 20}").expect("it can be written");
    complete(&server, "two");
    let page = server.metrics();
    let budgets = page.lines().filter(|line| line.starts_with("mlx_budget_bytes{"));
    let budgets: Vec<u64> = budgets.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert!(!budgets.is_empty() && budgets.iter().sum::<u64>() <= 400_000_000, "{budgets:?}\n{page}");
}

/// Each adapter is served as a separate model. The base model answers as without adapters, and concurrent requests do not mix.
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

/// Loading takes as long as the disk does; here, until a pipe is written to. A child process would read from the same pipe.
#[test]
fn a_model_that_is_being_loaded_holds_up_no_other() {
    let slow = model_copy("llama-f32");
    let pipe = slow.path().join("tokenizer.json");
    let tokenizer = fs::read(&pipe).expect("a file");
    fs::remove_file(&pipe).expect("it was there");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let folder = mlx_tests::model_folder("llama-tied-f32");
    let models = [("slow", slow.path()), ("other", folder.as_path())];
    let models = models.map(|(name, folder)| format!("{name}={}", folder.display()));
    let server = Server::start(
        &SERVER,
        &["-m", &models[0], "-m", &models[1], "--models-budget", "1GB", "--in-process"],
    );
    let ask = |model: &str| {
        server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 2})).status
    };
    std::thread::scope(|threads| {
        let slow = threads.spawn(|| ask("slow"));
        // Opening succeeds once the loader reads.
        let mut writer = fs::File::options().write(true).open(&pipe).expect("a pipe");
        let others = ["tiny", "other"].map(|model| threads.spawn(move || ask(model)));
        let begin = Instant::now();
        while !others.iter().all(ScopedJoinHandle::is_finished) && begin.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let answered = others.iter().filter(|it| it.is_finished()).count();
        let still_loads = !slow.is_finished();
        fs::remove_file(&pipe).expect("it was there");
        fs::write(&pipe, &tokenizer).expect("it can be written");
        writer.write_all(&tokenizer).expect("it is read");
        drop(writer);
        assert!(still_loads && answered == 2, "{answered} models answered beside the one that loads");
        assert_eq!(slow.join().expect("it is answered"), 200);
        assert_eq!(others.map(|it| it.join().expect("it is answered")), [200, 200]);
    });
}

/// config.json shows that an architecture is not supported. A server with only that model does not start; with other models, clients get
/// the cause.
#[test]
fn a_model_that_can_never_be_loaded_is_named_with_the_cause() {
    let copy = model_copy("llama-f32");
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("json");
    (config["model_type"], config["architectures"]) = (json!("t5"), json!(["T5ForConditionalGeneration"]));
    fs::write(&path, config.to_string()).expect("it can be written");
    let t5 = format!("t5={}", copy.path().display());
    let output = Command::new(SERVER[0]).args(["--port", "0", "-m", &t5]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--model") && text.contains("\"t5\""), "{text}");
    let server = Server::start(&SERVER, &["-m", &t5]);
    let ask = |model: &str| {
        server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 1}))
    };
    assert_eq!(ask("tiny").status, 200);
    let refused = ask("t5");
    let message = refused.body["error"]["message"].as_str().expect("a text");
    assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(message.contains("config.json: model_type") && message.contains("\"t5\""), "{message}");
    assert!(!message.contains(&*copy.path().to_string_lossy()), "{message}");
}

#[test]
fn the_error_of_a_model_that_fails_to_load_hides_its_path() {
    let copy = model_copy("llama-f32");
    std::fs::remove_file(copy.path().join("model.safetensors")).expect("it was there");
    let server = Server::start_on(&SERVER, copy.path(), &[]);
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &json!("model_not_loaded")));
    let text = refused.body.to_string();
    assert!(!text.contains(&*copy.path().to_string_lossy()) && text.contains("safetensors"), "{text}");
    let mut eager = Server::start_on(&SERVER, copy.path(), &["--preload"]);
    assert!(!eager.wait().success(), "the server must not start without a loadable model");
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
