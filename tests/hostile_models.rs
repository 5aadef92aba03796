//! Model folders with false contents, served next to an honest model: every request gets an answer or an error, and the server continues.

use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use mlx_tests::{Dice, model_copy};
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVE: [&str; 2] = [env!("CARGO_BIN_EXE_mlx"), "serve"];
/// The time limit of a request to a lying model.
const PATIENCE: Duration = Duration::from_mins(1);

/// A file of a model folder, a JSON pointer to a value in it, and the false value.
type Lie = (&'static str, &'static str, Value);

fn lies() -> Vec<Lie> {
    let (tokenizer, config, settings) = ("tokenizer.json", "config.json", "tokenizer_config.json");
    let token = |id: u64, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": true,
            "normalized": true, "special": false})
    };
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let strip = json!({"type": "Strip", "content": "e", "start": u64::MAX, "stop": u64::MAX});
    let bos_beyond = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [4_000_000_000_u32], "tokens": ["<s>"]}}});
    let crowd: Vec<Value> = (0..2000).map(|id| token(4 + id, &"e".repeat(1 + id as usize % 50))).collect();
    vec![
        // Ids beyond the model and beyond any vocabulary; tokens for the empty text and for every letter.
        (tokenizer, "/added_tokens", json!([token(u64::from(u32::MAX), "e")])),
        (tokenizer, "/added_tokens", json!([token(1 << 32, "e")])),
        (tokenizer, "/added_tokens", json!([token(5, ""), token(6, " "), token(7, "\u{1b}[2J")])),
        (tokenizer, "/added_tokens", json!(crowd)),
        (tokenizer, "/added_tokens", json!([{"id": 5}])),
        (tokenizer, "/model/vocab/e", json!(4_000_000_000_u32)),
        (tokenizer, "/model/vocab/e", json!(9)),
        (tokenizer, "/model/vocab/e", json!(-1)),
        (tokenizer, "/model/vocab", json!({})),
        (tokenizer, "/model/merges", json!([["no such", "token"]])),
        (tokenizer, "/model/type", json!("Unigram")),
        (
            tokenizer,
            "/model",
            json!({"type": "Unigram", "vocab": [["e", f64::MAX], ["a", -f64::MAX]], "unk_id": 7}),
        ),
        (tokenizer, "/model", json!({"type": "WordLevel", "vocab": {"e": 1}, "unk_token": "none"})),
        // Work and size out of proportion.
        (tokenizer, "/pre_tokenizer", split("(e+)+$")),
        (tokenizer, "/pre_tokenizer", split("(")),
        (tokenizer, "/pre_tokenizer", split("")),
        (tokenizer, "/normalizer", json!({"type": "Prepend", "prepend": "e".repeat(1 << 14)})),
        (tokenizer, "/normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "ee"})),
        (tokenizer, "/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        (
            tokenizer,
            "/padding",
            json!({"strategy": {"Fixed": 1_u64 << 40}, "direction": "Right",
            "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "e"}),
        ),
        (tokenizer, "/decoder", strip),
        (tokenizer, "/decoder", json!({"type": "Sequence", "decoders": []})),
        (
            tokenizer,
            "/decoder",
            json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        ),
        (tokenizer, "/decoder", json!(5)),
        (tokenizer, "/post_processor", bos_beyond),
        // End tokens of every wrong type.
        (config, "/eos_token_id", json!("four")),
        (config, "/eos_token_id", json!([4, -1])),
        (config, "/eos_token_id", json!([[4]])),
        (config, "/eos_token_id", json!({"id": 4})),
        (config, "/eos_token_id", json!(true)),
        (config, "/eos_token_id", json!(4_000_000_000_u32)),
        (config, "/eos_token_id", json!(1e99)),
        (config, "/vocab_size", json!(1 << 30)),
        (config, "/vocab_size", json!(1_u64 << 62)),
        (config, "/vocab_size", json!(7)),
        (config, "/vocab_size", json!(0)),
        (config, "/max_position_embeddings", json!(1 << 30)),
        (config, "/max_position_embeddings", json!(1)),
        (config, "/num_hidden_layers", json!(1 << 29)),
        (config, "/num_attention_heads", json!(1 << 29)),
        (config, "/head_dim", json!(1 << 30)),
        (config, "/rope_theta", json!(1e-300)),
        (config, "/rms_norm_eps", json!(1e300)),
        (config, "", json!([])),
        (
            config,
            "",
            json!({"model_type": "mistral3", "text_config": {"model_type": "mistral3", "text_config": {}}}),
        ),
        (config, "/model_type", json!("\u{9b}31m\u{1b}]0;evil\u{7}\u{7f}")),
        ("generation_config.json", "", json!({"temperature": "hot", "top_k": -1})),
        ("generation_config.json", "", json!({"temperature": 1e300, "top_p": 7, "eos_token_id": [[]]})),
        (settings, "", json!({"bos_token": 5})),
        (settings, "", json!({"bos_token": "\u{1b}[31m", "eos_token": "", "add_bos_token": true})),
        (settings, "", json!({"added_tokens_decoder": {"99999999999999999999": {"content": "e"}}})),
        (settings, "", json!({"added_tokens_decoder": {"4294967295": {"content": "e", "special": true}}})),
        (
            settings,
            "",
            json!({"extra_special_tokens": {"a": 5, "b": [], "c": {"content": ""}}, "chat_template": 5}),
        ),
        (settings, "", json!({"chat_template": "{{ raise_exception('\u{9b}31m\u{1b}[2J\u{7f}') }}"})),
        (settings, "", json!({"chat_template": [{"name": 1}]})),
    ]
}

/// Returns a copy of an honest model with one lie.
fn liar((file, pointer, value): &Lie) -> TempDir {
    let copy = model_copy("llama-f32");
    let path = copy.path().join(file);
    let text = std::fs::read(&path).unwrap_or_else(|_| b"{}".to_vec());
    let mut whole: Value = serde_json::from_slice(&text).expect("json");
    *whole.pointer_mut(pointer).unwrap_or_else(|| panic!("{file} has {pointer}")) = value.clone();
    std::fs::write(&path, whole.to_string()).expect("it can be written");
    copy
}

/// Returns folders with files that are not valid JSON.
fn broken() -> Vec<TempDir> {
    let mut folders = Vec::new();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        for text in [
            "[".repeat(100_000),
            "{\"a\":".repeat(100_000),
            "\u{feff}{}".into(),
            "\0".repeat(100),
            String::new(),
        ] {
            let copy = model_copy("llama-f32");
            std::fs::write(copy.path().join(file), text).expect("it can be written");
            folders.push(copy);
        }
        if file == "config.json" {
            // A folder without this file is rejected at the start.
            continue;
        }
        let copy = model_copy("llama-f32");
        std::fs::remove_file(copy.path().join(file)).ok();
        // A link to itself.
        std::os::unix::fs::symlink(file, copy.path().join(file)).expect("it can be linked");
        folders.push(copy);
    }
    folders
}

/// The path of a request, its body, and a check of the answer.
type Question = (&'static str, Value, fn(&Value) -> bool);

fn questions() -> Vec<Question> {
    let user = json!([{"role": "user", "content": "The \u{1b}[31m waves eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee!"}]);
    let text = "The waves eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee!";
    vec![
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 4, "logprobs": 2, "echo": true, "n": 2}),
            |body| is_answer(body, 2, |choice| choice["text"].is_string()),
        ),
        (
            "/v1/completions",
            json!({"prompt": [1, 5, 319], "max_tokens": 4, "stop": "e", "dry_multiplier": 1}),
            |body| is_answer(body, 1, |choice| choice["text"].is_string()),
        ),
        ("/v1/chat/completions", json!({"messages": user, "max_tokens": 4}), |body| {
            is_answer(body, 1, |choice| choice["message"]["content"].is_string())
        }),
        ("/v1/chat/render", json!({"messages": user}), |body| body["prompt"].is_string()),
        ("/tokenize", json!({"content": text, "with_pieces": true, "add_special": true}), |body| {
            body["tokens"].as_array().is_some_and(|tokens| tokens.iter().all(|token| token["id"].is_u64()))
        }),
        ("/detokenize", json!({"tokens": [0, 4, 5, 319], "skip_special": true}), |body| {
            body["content"].is_string()
        }),
    ]
}

/// Returns true if a body has this number of complete choices, each with at most four tokens.
fn is_answer(body: &Value, count: usize, is_choice: fn(&Value) -> bool) -> bool {
    let has_ended = |choice: &Value| ["stop", "length"].iter().any(|end| choice["finish_reason"] == *end);
    let choices = body["choices"].as_array().is_some_and(|choices| {
        choices.len() == count && choices.iter().all(|choice| is_choice(choice) && has_ended(choice))
    });
    choices && body["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens <= 4 * count as u64)
}

/// Sends a lying model every request that reads its files. After each one, the honest model must repeat its first answer. An answer must
/// be complete; an error must have a status and a code, and no path of this machine.
fn ask(server: &Server, model: &str, about: &str, honest: &Value) {
    for (path, mut request, is_whole) in questions() {
        request["model"] = json!(model);
        let begin = Instant::now();
        let reply = server.post(path, &request);
        let (status, error) = (reply.status, &reply.body["error"]);
        let message = error["message"].as_str().unwrap_or_default();
        let is_error = [400, 500, 503].contains(&status)
            && error["code"].is_string()
            && !message.is_empty()
            && !message.contains(&*std::env::temp_dir().to_string_lossy());
        let is_good = if status == 200 { is_whole(&reply.body) } else { is_error };
        assert!(is_good, "{about}: {path}: {status} {}", reply.body);
        assert!(begin.elapsed() < PATIENCE, "{about}: {path} took {:?}", begin.elapsed());
    }
    assert_eq!(&ask_honest(server), honest, "after {about}");
}

/// Returns the answer of the honest model.
fn ask_honest(server: &Server) -> Value {
    let request = json!({"prompt": "The", "max_tokens": 4, "temperature": 0, "model": "tiny"});
    let reply = server.post("/v1/completions", &request);
    assert!(reply.status == 200 && is_answer(&reply.body, 1, |it| it["text"].is_string()), "{}", reply.body);
    reply.body["choices"].clone()
}

fn serve(folders: &[TempDir]) -> Server {
    let models = folders
        .iter()
        .enumerate()
        .flat_map(|(index, folder)| ["-m".to_owned(), format!("liar{index}={}", folder.path().display())]);
    let models: Vec<String> = models.chain(["--models-budget".into(), "2GB".into()]).collect();
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    Server::start_on(&SERVE, &mlx_tests::model_folder("llama-f32"), &models)
}

/// Checks that the log is safe to print on a terminal.
fn assert_plain(log: &str) {
    let command = log.chars().find(|letter| letter.is_control() && *letter != '\n');
    assert_eq!(command, None, "{log}");
}

#[test]
fn models_that_lie_hurt_nobody_else() {
    let lies = lies();
    let folders: Vec<TempDir> = lies.iter().map(liar).collect();
    let server = serve(&folders);
    let honest = ask_honest(&server);
    for (index, (file, pointer, value)) in lies.iter().enumerate() {
        let mut about = format!("{file}{pointer} {value}");
        about.truncate((0..=100).rev().find(|end| about.is_char_boundary(*end)).unwrap_or(0));
        ask(&server, &format!("liar{index}"), &about, &honest);
    }
    assert_plain(&server.log());
}

#[test]
fn files_that_are_broken_hurt_nobody_else() {
    let folders = broken();
    let server = serve(&folders);
    let honest = ask_honest(&server);
    for index in 0..folders.len() {
        ask(&server, &format!("liar{index}"), &format!("broken file {index}"), &honest);
    }
    assert_plain(&server.log());
}

/// Any value of any file may be replaced by any other.
#[test]
fn models_with_random_values_hurt_nobody_else() {
    let mut dice = Dice::new(23);
    let folders: Vec<(TempDir, String)> = (0..40).map(|_| random(&mut dice)).collect();
    let (folders, about): (Vec<TempDir>, Vec<String>) = folders.into_iter().unzip();
    let server = serve(&folders);
    let honest = ask_honest(&server);
    for (index, about) in about.iter().enumerate() {
        ask(&server, &format!("liar{index}"), about, &honest);
    }
    assert_plain(&server.log());
}

fn random(dice: &mut Dice) -> (TempDir, String) {
    let copy = model_copy("llama-f32");
    let file =
        dice.pick(&["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]);
    let path = copy.path().join(file);
    let mut value: Value = match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).expect("json"),
        Err(_) => json!({"eos_token_id": 4, "temperature": 1.0}),
    };
    let pointer = pointer(&value, dice);
    let other = [
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!("\u{9b}"),
        json!([]),
        json!({}),
        json!(true),
        Value::Null,
    ];
    let other = &other[dice.below(other.len())];
    *value.pointer_mut(&pointer).expect("it is there") = other.clone();
    std::fs::write(&path, value.to_string()).expect("it can be written");
    (copy, format!("{file}{pointer} = {other}"))
}

/// Returns a pointer to a random value inside a value.
fn pointer(value: &Value, dice: &mut Dice) -> String {
    let (mut pointer, mut place) = (String::new(), value);
    loop {
        let deeper = dice.below(4) > 0;
        match place {
            Value::Object(map) if deeper && !map.is_empty() => {
                let (key, value) = map.iter().nth(dice.below(map.len())).expect("a key");
                pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                place = value;
            }
            Value::Array(list) if deeper && !list.is_empty() => {
                let index = dice.below(list.len());
                pointer = format!("{pointer}/{index}");
                place = &list[index];
            }
            _ => return pointer,
        }
    }
}
