//! Structured output through the programs: the server and the command line give the same valid answers and the same errors.

use std::process::Command;

use mlx_tests::server::Server;
use mlx_tests::{harmony, model_folder, piped};
use serde_json::{Value, json};

const SERVE: [&str; 2] = [env!("CARGO_BIN_EXE_mlx"), "serve"];
const PROMPT: [u32; 3] = [1, 9, 30];

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "count"],
        "additionalProperties": false,
    })
}

fn is_valid(text: &str) -> bool {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return false };
    let kind = object.get("kind").and_then(Value::as_str);
    object.len() == 2
        && matches!(kind, Some("a" | "b"))
        && object["count"].as_u64().is_some_and(|it| it < 100)
}

/// Runs `mlx generate` with these flags.
fn generate(flags: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.arg("generate").arg("-m").arg(model_folder("llama-f32")).args([
        "--prompt-ids",
        "1,9,30",
        "--json",
    ]);
    command.args(flags);
    piped(command, "")
}

fn ids(tokens: &Value) -> Vec<u64> {
    tokens
        .as_array()
        .expect("a list")
        .iter()
        .map(|token| token["id"].as_u64().or(token.as_u64()).expect("an id"))
        .collect()
}

#[test]
fn program_and_server_give_the_same_valid_answers() {
    let server = Server::start(&SERVE, &["--exact"]);
    let schema_text = schema().to_string();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &schema_text).expect("it can be written");
    let from_file = format!("@{}", file.path().display());
    let named =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}});
    for (field, value, flag, text) in [
        ("response_format", named, "--json-schema", schema_text.as_str()),
        ("structured_outputs", json!({"json": schema()}), "--json-schema", from_file.as_str()),
        ("structured_outputs", json!({"regex": "[ab]{3}"}), "--regex", "[ab]{3}"),
        ("structured_outputs", json!({"grammar": "start: \"x\" /[yz]/"}), "--grammar", "start: \"x\" /[yz]/"),
    ] {
        let mut request = json!({"prompt": PROMPT, "seed": 7, "temperature": 2, "return_token_ids": true});
        request[field] = value;
        let whole = server.post("/v1/completions", &request);
        assert_eq!(whole.status, 200, "{}", whole.body);
        let choice = &whole.body["choices"][0];
        let output = generate(&["--seed", "7", "--temperature", "2", "--min-p", "0", "--exact", flag, text]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed: Value = serde_json::from_slice(&output.stdout).expect("one json object");
        assert_eq!(printed["text"], choice["text"]);
        assert_eq!(ids(&printed["tokens"]), ids(&choice["token_ids"]), "{flag} {text}");
        assert_eq!(choice["finish_reason"], "stop");
        if flag == "--json-schema" {
            assert!(is_valid(choice["text"].as_str().expect("text")), "{choice}");
        }
        request["stream"] = json!(true);
        let chunks = server.stream("/v1/completions", &request);
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(choice["text"], streamed);
    }
}

#[test]
fn every_choice_of_a_chat_is_valid() {
    let server = Server::start(&SERVE, &[]);
    let request = json!({
        "messages": [{"role": "user", "content": "The waves"}], "n": 8, "temperature": 3, "seed": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}},
    });
    let answer = server.post("/v1/chat/completions", &request);
    for choice in answer.body["choices"].as_array().expect("a list") {
        assert!(is_valid(choice["message"]["content"].as_str().expect("text")), "{choice}");
    }
}

#[test]
fn thoughts_stay_free_and_the_answer_is_one_of_the_texts() {
    let folder = harmony::model();
    let server = Server::start_on(&SERVE, folder.path(), &[]);
    let request = json!({
        "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "presence_penalty": 1,
        "structured_outputs": {"choice": ["zz", "aHello"]},
    });
    let answer = server.post("/v1/chat/completions", &request);
    let message = &answer.body["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], harmony::THOUGHT, "{}", answer.body);
    let content = message["content"].as_str().expect("text");
    assert!(["zz", "aHello"].contains(&content), "{content:?}");
}

#[test]
fn what_cannot_be_enforced_is_refused_by_field_and_keyword() {
    let server = Server::start(&SERVE, &[]);
    let object = json!({"type": "json_object"});
    let named = |schema: Value| json!({"type": "json_schema", "json_schema": {"schema": schema}});
    for (fields, param, word) in [
        (
            json!({"response_format": named(json!({"uniqueItems": true}))}),
            "response_format.json_schema.schema",
            "uniqueItems",
        ),
        (json!({"structured_outputs": {"json": {"not": {}}}}), "structured_outputs.json", "not"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex", ""),
        (json!({"structured_outputs": {"grammar": "start: x"}}), "structured_outputs.grammar", "x"),
        (json!({"response_format": object, "stop": "a"}), "stop", "constraint"),
        (json!({"response_format": object, "ignore_eos": true}), "ignore_eos", "constraint"),
    ] {
        let mut request = json!({"prompt": "a", "max_tokens": 1});
        request.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let refused = server.post("/v1/completions", &request);
        let error = &refused.body["error"];
        assert_eq!((refused.status, error["param"].as_str()), (400, Some(param)), "{}", refused.body);
        assert!(error["message"].as_str().is_some_and(|it| it.contains(word)), "{error}");
    }
    for (flags, word) in [
        (&["--json-schema", "{\"not\": {}}"][..], "--json-schema uses not at #"),
        (&["--json-schema", "{"], "JSON"),
        (&["--json-schema", "@missing"], "missing"),
        (&["--regex", "a", "--grammar", "start: \"a\""], "cannot be used with"),
        (&["--regex", "a", "--stop", "b"], "--stop conflicts with"),
    ] {
        let output = generate(flags);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(word), "{message}");
    }
}
