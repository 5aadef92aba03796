//! Profiles as models: their settings, the values of requests that win over them, the engine that they share, and files that change.

use std::process::Command;

use mlx_tests::server::Server;
use mlx_tests::successors::endless_thinker;
use mlx_tests::{golden_folder, model_folder};
use serde_json::{Value, json};

use super::{SERVER, user, wait_until};

const CHAT: &str = "/v1/chat/completions";

const PROFILES: &str = "\
[[profile]]
name = 'terse'
model = 'tiny'
system = 'Be brief, and answer like the keeper of a light house.'
temperature = 0.7
top-k = 20
seed = 5
max-tokens = 9
stop = ['zzz']
logit-bias = { 7 = 1.5 }

[[profile]]
name = 'long'
model = 'tiny'
system = 'Be brief, and answer like the keeper of a light house.'
temperature = 0.2
seed = 6
max-tokens = 20
";

/// A folder with a file of profiles.
struct File(tempfile::TempDir);

impl File {
    fn with(text: &str) -> Self {
        let file = Self(tempfile::tempdir().expect("a temporary folder"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        // A reader never sees half of it.
        let new = self.0.path().join("new");
        std::fs::write(&new, text).expect("it can be written");
        std::fs::rename(new, self.path()).expect("the same folder");
    }

    fn path(&self) -> String {
        self.0.path().join("profiles.toml").to_str().expect("utf-8").to_owned()
    }

    fn serve(&self, more: &[&str]) -> Server {
        Server::start(&SERVER, &[&["--strict", "--profiles", &self.path()], more].concat())
    }
}

/// Returns the request with the fields of `more`.
fn with(request: &Value, more: &Value) -> Value {
    let mut request = request.clone();
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

fn messages(system: &str) -> Value {
    json!([{"role": "system", "content": system}, {"role": "user", "content": "The waves"}])
}

/// Returns the parts of an answer that its tokens determine.
fn answer(server: &Server, path: &str, request: &Value) -> Value {
    let reply = server.post(path, request);
    assert_eq!(reply.status, 200, "{request}: {}", reply.body);
    let body = reply.body;
    let items =
        || body["output"].as_array().map(|items| items.iter().map(|it| &it["content"]).collect::<Vec<_>>());
    match path {
        "/v1/messages" => json!([body["content"], body["stop_reason"], body["usage"]["output_tokens"]]),
        "/v1/responses" => json!([items(), body["status"], body["usage"]["output_tokens"]]),
        "/api/chat" => json!([body["message"]["content"], body["done_reason"], body["eval_count"]]),
        "/api/generate" => json!([body["response"], body["done_reason"], body["eval_count"]]),
        _ => json!([body["choices"], body["usage"]["completion_tokens"]]),
    }
}

/// The answer of a profile has the bits of the answer to a request with all of its values.
#[test]
fn a_profile_answers_like_a_request_that_spells_it_out() {
    let file = File::with(PROFILES);
    let server = file.serve(&["--exact"]);
    let system = "Be brief, and answer like the keeper of a light house.";
    let sampling = json!({"temperature": 0.7, "top_k": 20, "seed": 5, "logit_bias": {"7": 1.5}});
    let spelled = |more: Value| with(&with(&json!({"model": "tiny"}), &sampling), &more);
    let logprobs = json!({"logprobs": true, "top_logprobs": 3});
    let options = json!({"temperature": 0.7, "top_k": 20, "seed": 5, "num_predict": 9, "stop": ["zzz"]});
    for (path, short, long) in [
        (
            CHAT,
            with(&json!({"messages": user("The waves")}), &logprobs),
            with(&spelled(json!({"messages": messages(system), "max_tokens": 9, "stop": "zzz"})), &logprobs),
        ),
        (
            "/v1/completions",
            json!({"prompt": "The waves", "logprobs": 3}),
            spelled(json!({"prompt": "The waves", "logprobs": 3, "max_tokens": 9, "stop": "zzz"})),
        ),
        (
            "/v1/responses",
            json!({"input": "The waves", "store": false}),
            spelled(
                json!({"input": "The waves", "store": false, "instructions": system, "max_output_tokens": 9}),
            ),
        ),
    ] {
        let of_profile = answer(&server, path, &with(&short, &json!({"model": "terse"})));
        assert_eq!(of_profile, answer(&server, path, &long), "{path}");
        assert_ne!(of_profile, answer(&server, path, &with(&short, &json!({"model": "long"}))), "{path}");
    }
    // The other two protocols have no logit bias and no seed of their own, so theirs are compared where they have them.
    let plain = File::with(&PROFILES.replace("logit-bias = { 7 = 1.5 }\n", ""));
    let server = plain.serve(&["--exact"]);
    let ollama = |more: Value| with(&json!({"stream": false}), &more);
    assert_eq!(
        answer(&server, "/api/chat", &ollama(json!({"model": "terse", "messages": user("The waves")}))),
        answer(
            &server,
            "/api/chat",
            &ollama(json!({"model": "tiny", "messages": messages(system), "options": options}))
        )
    );
    assert_eq!(
        answer(&server, "/api/generate", &ollama(json!({"model": "terse:latest", "prompt": "The waves"}))),
        answer(
            &server,
            "/api/generate",
            &ollama(json!({"model": "tiny", "prompt": "The waves", "system": system, "options": options}))
        )
    );
    let greedy = json!({"temperature": 0, "max_tokens": 9});
    assert_eq!(
        answer(
            &server,
            "/v1/messages",
            &with(&greedy, &json!({"model": "terse", "messages": user("The waves")}))
        ),
        answer(
            &server,
            "/v1/messages",
            &with(
                &greedy,
                &json!({"model": "tiny", "messages": user("The waves"), "system": system, "top_k": 20})
            )
        )
    );
    let tokens =
        |request: Value| server.post("/v1/messages/count_tokens", &request).body["input_tokens"].clone();
    assert_eq!(
        tokens(json!({"model": "terse", "messages": user("The waves")})),
        tokens(json!({"model": "tiny", "messages": user("The waves"), "system": system}))
    );
    let render = |request: Value| server.post("/v1/chat/render", &request).body["prompt"].clone();
    assert_eq!(
        render(json!({"model": "terse", "messages": user("The waves")})),
        render(json!({"model": "tiny", "messages": messages(system)}))
    );
}

#[test]
fn a_value_of_the_request_wins() {
    let two = "\n[[profile]]\nname = 'two'\nmodel = 'tiny'\ntemperature = 0\nmax-tokens = 2\n";
    let file = File::with(&format!("{PROFILES}{two}"));
    let server = file.serve(&["--exact"]);
    let system = "Be brief, and answer like the keeper of a light house.";
    let base = json!({"model": "terse", "messages": user("The waves"), "logprobs": true});
    let spelled = json!({"model": "tiny", "messages": messages(system), "logprobs": true, "temperature": 0.7,
        "top_k": 20, "seed": 5, "max_tokens": 9, "stop": ["zzz"], "logit_bias": {"7": 1.5}});
    for more in [
        json!({"temperature": 0}),
        json!({"temperature": 1.5, "top_k": 0}),
        json!({"seed": 77}),
        json!({"max_tokens": 3}),
        json!({"max_completion_tokens": 12, "ignore_eos": true}),
        json!({"stop": []}),
        json!({"stop": ["e"]}),
        json!({"logit_bias": {"9": 4}}),
        json!({"min_p": 0.3}),
        json!({"messages": messages("Sing.")}),
        json!({"messages": [{"role": "developer", "content": "Sing."}, {"role": "user", "content": "The waves"}]}),
    ] {
        let mut expected = with(&spelled, &more);
        if more.get("max_completion_tokens").is_some() {
            expected.as_object_mut().expect("an object").remove("max_tokens");
        }
        assert_eq!(answer(&server, CHAT, &with(&base, &more)), answer(&server, CHAT, &expected), "{more}");
    }
    // Ollama's values for no limit and for a random seed.
    let ollama = |model: &str, options: Value| {
        let request =
            json!({"model": model, "messages": user("The waves"), "stream": false, "options": options});
        let reply = server.post("/api/chat", &request);
        assert_eq!(reply.status, 200, "{}", reply.body);
        (reply.header("x-seed").to_owned(), reply.body["eval_count"].as_u64().expect("a number"))
    };
    assert_eq!(ollama("terse", json!({"temperature": 0})).0, "5");
    assert_ne!(ollama("terse", json!({"seed": -1})).0, "5");
    assert_eq!(ollama("two", json!({})).1, 2);
    assert!(ollama("two", json!({"num_predict": -1})).1 > 2);
}

#[test]
fn profiles_share_an_engine_and_its_prefixes() {
    let file = File::with(PROFILES);
    let server = file.serve(&[]);
    let cached = |model: &str| {
        let reply = server.post(CHAT, &json!({"model": model, "messages": user("The waves and the keeper")}));
        assert_eq!((reply.status, &reply.body["model"]), (200, &json!(model)), "{}", reply.body);
        let usage = &reply.body["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (cached, usage["prompt_tokens"].as_u64().expect("a number"))
    };
    assert_eq!(cached("terse").0, 0);
    let (reused, prompt) = cached("long");
    assert!(reused > 0 && reused >= prompt / 2, "{reused} of {prompt} tokens");
    let list = server.get("/v1/models").body;
    let listed = list["data"].as_array().expect("a list");
    let names: Vec<&Value> = listed.iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["tiny", "terse", "long"]);
    for profile in &listed[1..] {
        assert_eq!((&profile["parent"], &profile["profile"]), (&json!("tiny"), &json!(true)));
        assert_eq!((&profile["loaded"], profile.get("memory_bytes")), (&json!(true), None));
    }
    assert_eq!((listed[0].get("parent"), listed[0].get("profile")), (None, None));
    // The page sends no value that the profile sets.
    let sampling = &server.get("/v1/models/terse").body["chat_sampling"];
    assert_eq!(
        (&sampling["temperature"]["source"], &sampling["top_k"]["value"]),
        (&json!("profile"), &json!(20))
    );
    assert_eq!(sampling["min_p"]["source"], "default");
    let tags = server.get("/api/tags").body;
    let tag = &tags["models"][1];
    assert_eq!((&tag["name"], &tag["details"]["parent_model"]), (&json!("terse"), &json!("tiny")));
    assert_eq!(server.get("/api/ps").body["models"].as_array().map(Vec::len), Some(1));
    // The stay in memory is the model's.
    let unloaded = server.post("/v1/models/unload", &json!({"model": "terse"})).body;
    assert_eq!((&unloaded["id"], &unloaded["state"]), (&json!("terse"), &json!("unloaded")));
    assert_eq!(server.get("/v1/models/tiny").body["loaded"], false);
    let loaded = server.post("/v1/models/load", &json!({"model": "long", "keep_alive": "5m"})).body;
    assert_eq!((&loaded["id"], &loaded["loaded"]), (&json!("long"), &json!(true)));
    assert!(server.get("/v1/models/tiny").body["expires_in"].as_f64().is_some_and(|left| left > 200.0));
    let keep = json!({"model": "terse", "messages": user("Hi"), "stream": false, "keep_alive": -1});
    assert_eq!(server.post("/api/chat", &keep).status, 200);
    assert_eq!(server.get("/v1/models/tiny").body.get("expires_in"), None);
    let unknown = server.post(CHAT, &json!({"model": "ters", "messages": user("Hi")}));
    assert!(unknown.status == 404 && unknown.body["error"]["message"].to_string().contains("terse, long"));
}

#[test]
fn a_file_that_changes_is_read_again_and_a_broken_one_is_not_used() {
    let file = File::with(PROFILES);
    let server = file.serve(&[]);
    let status = |model: &str| {
        server.post(CHAT, &json!({"model": model, "messages": user("Hi"), "max_tokens": 1})).status
    };
    assert_eq!((status("terse"), status("new")), (200, 404));
    let lora = golden_folder().join("adapters/lora");
    let adapter = format!("{PROFILES}adapter = '{}'\n", lora.display());
    for (text, reason) in [
        (format!("{PROFILES}top-p = 2\n"), "profiles.toml: line 19: top-p is 2; it must be from 0 to 1"),
        (format!("{PROFILES}mood = 2\n"), "profiles.toml: line 19: mood is no key of a profile"),
        (
            PROFILES.replace("'long'", "'tiny'"),
            "profiles.toml: line 13: name \\\"tiny\\\" is also the name of a model",
        ),
        (
            adapter,
            "profiles.toml: line 13: \\\"long\\\" has a new adapter or another model; restart the server",
        ),
        ("[[profile]".to_owned(), "profiles.toml: line 1: "),
    ] {
        file.write(&text);
        wait_until(reason, || server.log().contains(reason));
        assert_eq!(status("terse"), 200, "the old profiles stay");
    }
    file.write(&PROFILES.replace("terse", "new").replace("max-tokens = 20", "max-tokens = 2"));
    wait_until("the new profile is served", || status("new") == 200);
    assert_eq!(status("terse"), 404);
    let answer = server.post(CHAT, &json!({"model": "long", "messages": user("Hi"), "ignore_eos": true}));
    assert_eq!(answer.body["usage"]["completion_tokens"], 2);
    std::fs::remove_file(file.path()).expect("it exists");
    wait_until("the missing file is noticed", || server.log().contains("does not exist"));
    assert_eq!(status("new"), 200);
}

#[test]
fn a_mistake_in_the_file_stops_the_start() {
    let moe = golden_folder().join("adapters/lora-moe");
    let tiny = format!("tiny={}", model_folder("llama-f32").display());
    for (text, expected) in [
        ("[[profile]]\nname = 'a'\n".to_owned(), "profiles.toml: line 1: model is missing"),
        (PROFILES.replace("'terse'", "'tiny'"), "line 2: name \"tiny\" is also the name of a model"),
        (PROFILES.replace("'terse'", "'x'") + "adapter = '/no/such'\n", "line 13: adapter of \"long\": "),
        (format!("{PROFILES}adapter = '{}'\n", moe.display()), "line 13: \"long\": "),
    ] {
        let file = File::with(&text);
        let output = Command::new(SERVER[0])
            .args(["--port", "0", "-m", &tiny, "--profiles", &file.path()])
            .output()
            .expect("the program starts");
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && shown.contains("--profiles: "), "{shown}");
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn a_profile_has_an_adapter_or_a_model_of_its_own() {
    let folder = |name: &str| golden_folder().join("adapters").join(name).display().to_string();
    let text = format!(
        "[[profile]]\nname = 'poet'\nmodel = 'tiny'\nadapter = '{}'\ntemperature = 0\n\
         [[profile]]\nname = 'path'\nmodel = '{}'\nmax-tokens = 3\ntemperature = 0\n\
         [[profile]]\nname = 'absent'\nmodel = 'no-org/no-model'\n",
        folder("lora"),
        model_folder("llama-rope3-f32").display()
    );
    let file = File::with(&text);
    let server = file.serve(&["--adapter", &format!("named={}", folder("lora"))]);
    let ask = |model: &str| {
        answer(
            &server,
            "/v1/completions",
            &json!({"model": model, "prompt": "The", "temperature": 0, "logprobs": 2}),
        )
    };
    assert_eq!(ask("poet"), ask("named"));
    assert_ne!(ask("poet"), ask("tiny"));
    assert_eq!(ask("path")[1], 3);
    let list = server.get("/v1/models").body;
    let names: Vec<&Value> =
        list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert!(names.contains(&&json!("poet")) && names.contains(&&json!("path")), "{names:?}");
    assert!(!names.contains(&&json!("absent")), "{names:?}");
    assert_eq!(server.get("/v1/models/poet").body["parent"], "tiny");
    let absent = server.post(CHAT, &json!({"model": "absent", "messages": user("Hi")}));
    assert_eq!((absent.status, &absent.body["error"]["param"]), (404, &json!("model")), "{}", absent.body);
    assert!(absent.body["error"]["message"].to_string().contains("no-model"), "{}", absent.body);
    // The adapter of a profile is no model without it.
    file.write("# none");
    wait_until("the file is read", || server.log().contains("\"profiles\":0"));
    assert_eq!(server.get("/v1/models/poet").status, 404);
    assert_eq!(server.get("/v1/models").body["data"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_profile_sets_the_thinking_of_requests_without_their_own() {
    let model = endless_thinker();
    let base = "[[profile]]\nname = 'NAME'\nmodel = 'tiny'\ntemperature = 0\nmax-tokens = 40\n";
    let text = base.replace("NAME", "short")
        + "think-budget = 3\n"
        + &base.replace("NAME", "low")
        + "think = 'low'\n";
    let file = File::with(&text);
    let server = Server::start_on(&SERVER, model.path(), &["--strict", "--profiles", &file.path()]);
    let count = |more: &Value| {
        let reply = server.post(CHAT, &with(&json!({"model": "short", "messages": user("Go")}), more));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body["usage"]["completion_tokens"].as_u64().expect("a number")
    };
    // The thought, its marker, the answer and the end token.
    assert_eq!(count(&json!({})), 6);
    assert_eq!(count(&json!({"thinking_budget": 5})), 8);
    assert_eq!(count(&json!({"thinking_budget": -1})), 40, "without a limit");
    let refused = server.post(CHAT, &json!({"model": "low", "messages": user("Go")}));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(
        refused.body["error"]["message"].to_string().contains("think of the profile"),
        "{}",
        refused.body
    );
}

/// A response that is computed again after a crash has the settings of its own time.
#[test]
fn the_journal_has_the_profile_of_a_response() {
    let file = File::with(PROFILES);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = folder.path().to_str().expect("utf-8");
    let server = file.serve(&["--journal", journal]);
    let reply = server.post("/v1/responses", &json!({"model": "terse", "input": "The waves"}));
    assert_eq!((reply.status, &reply.body["model"]), (200, &json!("terse")), "{}", reply.body);
    let path = folder.path().join(format!("{}.json", reply.body["id"].as_str().expect("an id")));
    let record: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
    let profile = &record["record"]["profile"];
    assert_eq!((&profile["name"], &profile["temperature"]), (&json!("terse"), &json!(0.7)), "{record}");
}
