//! `mlx replay` and `mlx compare`: recorded answers are recomputed, and two models answer side by side.

use std::process::{Command, Output};

use mlx_tests::{model_copy, model_folder, piped};
use serde_json::{Value, json};

fn mlx(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    piped(command, input)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a record of an answer to `prompt`.
fn record(arguments: &[&str]) -> Value {
    let model = model_folder("llama-f32");
    let model = model.to_str().expect("UTF-8");
    let words = [&["generate", model, "A word", "--json", "--max-tokens", "12"], arguments].concat();
    let output = mlx(&words, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn recorded_answers_are_made_again_to_the_bit() {
    let records = [
        record(&["--seed", "7", "--logprobs", "2", "--repeat-penalty", "1.2"]),
        record(&["--raw", "--logprobs", "0", "--ignore-eos"]),
        record(&["--json-schema", "{\"enum\": [\"yes\", \"no\"]}"]),
    ];
    let all: String = records.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let output = mlx(&["replay"], &all);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert_eq!(said.matches("bit for bit").count(), 2, "{said}");
    assert!(
        said.lines().nth(2).is_some_and(|line| line.contains("identical") && line.contains("without")),
        "{said}"
    );
}

#[test]
fn another_answer_or_model_is_noticed() {
    let mut other = record(&["--seed", "7", "--logprobs", "0"]);
    let token = other["tokens"][3]["id"].as_u64().expect("an id");
    other["tokens"][3]["id"] = json!(token + 1);
    let output = mlx(&["replay"], &other.to_string());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("differs from token 4 on"), "{}", text(&output.stdout));
    let mut bits = record(&["--seed", "7", "--logprobs", "0"]);
    let logprob = bits["tokens"][2]["logprob"].as_f64().expect("a number");
    bits["tokens"][2]["logprob"] = json!(logprob as f32 * 1.000_001);
    let output = mlx(&["replay"], &bits.to_string());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("log-probabilities differ from token 3 on"),
        "{}",
        text(&output.stdout)
    );
    let mut moved = record(&["--seed", "7"]);
    let copy = model_copy("llama-rope3-f32");
    moved["request"]["model"] = json!(copy.path());
    let output = mlx(&["replay"], &moved.to_string());
    assert!(
        text(&output.stderr).contains("weights or configuration have changed"),
        "{}",
        text(&output.stderr)
    );
}

/// A record gives the same answer after changes to the defaults, the checkpoint or the version.
#[test]
fn a_record_keeps_the_sampling_that_it_was_made_with() {
    let recorded = record(&["--seed", "7", "--logprobs", "0"]);
    assert_eq!(recorded["request"]["sampling"]["temperature"], 0.8);
    assert_eq!(recorded["request"]["sampling"]["min_p"], 0.05);
    // The checkpoint's sampling has changed since.
    let copy = model_copy("llama-f32");
    std::fs::write(copy.path().join("generation_config.json"), "{\"temperature\": 0.1, \"top_k\": 1}")
        .expect("it can be written");
    let model = copy.path().to_str().expect("UTF-8");
    let output = mlx(&["replay", "-m", model], &recorded.to_string());
    assert!(text(&output.stdout).contains("bit for bit"), "{}{}", text(&output.stdout), text(&output.stderr));
    // Older versions sampled at temperature 1 without a filter, and recorded no values.
    let flags = ["--seed", "7", "--logprobs", "0", "--temperature", "1", "--min-p", "0"];
    let mut old = record(&flags);
    let request = old["request"].as_object_mut().expect("an object");
    request.remove("sampling");
    let words = request["arguments"].as_array().expect("a list");
    request["arguments"] = words.iter().take(words.len() - 4).cloned().collect();
    let output = mlx(&["replay"], &old.to_string());
    assert!(text(&output.stdout).contains("bit for bit"), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_ne!(old["tokens"], recorded["tokens"], "the defaults differ");
}

/// Records come with bug reports. They must not read files, write files or contact other machines.
#[test]
fn a_record_names_no_files_and_no_machines() {
    let work = tempfile::tempdir().expect("a folder");
    let (hosts, cache) = (work.path().join("hosts.json"), work.path().join("cache"));
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let schema = work.path().join("schema.json");
    std::fs::write(&schema, "{\"enum\": [\"yes\", \"no\"]}").expect("it can be written");
    let adapter = mlx_tests::golden_folder().join("adapters/lora");
    let recorded = record(&["--seed", "7", "--logprobs", "0"]);
    let with = |flags: &[String]| {
        let mut other = recorded.clone();
        let words = other["request"]["arguments"].as_array_mut().expect("a list");
        words.extend(flags.iter().map(|word| json!(word)));
        other.to_string()
    };
    for (flags, refusal) in [
        (vec!["--hostfile".to_owned(), path(&hosts)], "--hostfile is needed: record 1 uses it"),
        (vec!["--adapter".to_owned(), path(&adapter)], "--adapter is needed: record 1 uses it"),
        (vec!["--json-schema".to_owned(), format!("@{}", path(&schema))], "a record may not name a file"),
        (vec![format!("--grammar=@{}", path(&schema))], "a record may not name a file"),
    ] {
        let output = mlx(&["replay"], &with(&flags));
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(refusal), "{flags:?}: {}", text(&output.stderr));
    }
    // Flags that cannot change an answer are ignored.
    let harmless = [
        "--prompt-cache-dir".to_owned(),
        path(&cache),
        "--draft-model".to_owned(),
        path(&hosts),
        "--memory-budget".to_owned(),
        "1000".to_owned(),
    ];
    let output = mlx(&["replay"], &with(&harmless));
    assert!(text(&output.stdout).contains("bit for bit"), "{}", text(&output.stderr));
    assert!(!cache.exists(), "a folder of the record was made");
    // A model that is not a folder on this machine is not looked up.
    let mut away = recorded.clone();
    away["request"]["model"] = json!("org/tiny");
    let output = mlx(&["replay"], &away.to_string());
    assert!(text(&output.stderr).contains("-m is needed"), "{}", text(&output.stderr));
    // The record contains the schema's text, so replaying does not need the file.
    let of_file = record(&["--json-schema", &format!("@{}", path(&schema)), "--logprobs", "0"]);
    std::fs::remove_file(&schema).expect("it is there");
    let output = mlx(&["replay"], &of_file.to_string());
    assert!(text(&output.stdout).contains("bit for bit"), "{}", text(&output.stderr));
}

#[test]
fn what_is_no_record_is_refused_by_its_number() {
    for (input, said) in [
        ("", "has no records"),
        ("{\"text\": \"hi\"}", "record 1 was not written by `mlx generate --json`"),
        ("not json", "record 1 was not written by `mlx generate --json`"),
    ] {
        let output = mlx(&["replay"], input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        assert!(text(&output.stderr).contains(said), "{input}: {}", text(&output.stderr));
    }
    let mut record = record(&["--seed", "7"]);
    record["request"]["arguments"] = json!(["--no-such-flag"]);
    let output = mlx(&["replay"], &record.to_string());
    assert!(text(&output.stderr).contains("record 1 has unknown flags"), "{}", text(&output.stderr));
}

#[test]
fn two_models_answer_side_by_side() {
    let (left, right) = (model_folder("llama-f32"), model_folder("llama-rope3-f32"));
    let (left, right) = (left.to_str().expect("UTF-8"), right.to_str().expect("UTF-8"));
    let options = ["--max-tokens", "8", "--ignore-eos", "--seed", "5"];
    let output = mlx(&[&["compare", left, right, "Hello"], &options[..]].concat(), "");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("# llama-f32 (8 tokens") && said.contains("# llama-rope3-f32 (8 tokens"), "{said}");
    let output = mlx(&[&["compare", left, left, "Hello", "--json"], &options[..]].concat(), "");
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(object["answers"][0]["text"], object["answers"][1]["text"], "the same model and seed");
    assert_eq!(object["seed"], 5);
}
