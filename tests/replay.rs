//! `mlx replay` and `mlx compare`: recorded answers are made again, and two models answer side by side.

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

/// A record of an answer to `prompt`.
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
    assert!(text(&output.stderr).contains("other weights"), "{}", text(&output.stderr));
}

#[test]
fn what_is_no_record_is_refused_by_its_number() {
    for (input, said) in [
        ("", "has no records"),
        ("{\"text\": \"hi\"}", "record 1 is none of `mlx generate --json`"),
        ("not json", "record 1 is none"),
    ] {
        let output = mlx(&["replay"], input);
        assert_eq!(output.status.code(), Some(2), "{input}");
        assert!(text(&output.stderr).contains(said), "{input}: {}", text(&output.stderr));
    }
    let mut record = record(&["--seed", "7"]);
    record["request"]["arguments"] = json!(["--no-such-flag"]);
    let output = mlx(&["replay"], &record.to_string());
    assert!(
        text(&output.stderr).contains("record 1 has flags that are not known here"),
        "{}",
        text(&output.stderr)
    );
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
