//! The program as a user runs it: output, error messages and exit codes.

mod asking;
mod devices;
mod embedding;
mod mistakes;
mod piped_chats;
mod profiles;
mod saved_prompts;
mod service;
mod thoughts;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use mlx_core::backend::device_name;
use mlx_tests::skipped::possible;
use mlx_tests::{golden, model_copy, model_folder, piped};
use serde_json::Value;

/// Runs `mlx` with these arguments and piped input.
fn mlx_in(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments).current_dir(folder);
    piped(command, input)
}

fn mlx(arguments: &[&str], input: &str) -> Output {
    mlx_in(Path::new("."), arguments, input)
}

fn model(name: &str) -> String {
    model_folder(name).to_str().expect("a path of this repository is utf-8").to_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is utf-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are utf-8")
}

/// Returns the object that `generate --json` prints.
fn json(arguments: &[&str], input: &str) -> Value {
    let output = mlx(arguments, input);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one json object")
}

fn ids(object: &Value) -> Vec<u64> {
    let tokens = object["tokens"].as_array().expect("a list");
    tokens.iter().map(|token| token["id"].as_u64().expect("an id")).collect()
}

/// Returns true if the program computes on a CPU, and counts the check as skipped otherwise.
fn is_cpu() -> bool {
    possible(device_name().expect("a device") == "cpu", "a CPU as the device")
}

const GREEDY: [&str; 5] = ["--temperature", "0", "--max-tokens", "32", "--ignore-eos"];

#[test]
fn greedy_text_equals_the_reference() {
    let folder = model("llama-f32");
    for case in golden::cases("llama-f32").cases {
        let prompt: Vec<String> = case.prompt_ids.iter().map(u32::to_string).collect();
        let prompt = prompt.join(",");
        let mut arguments =
            vec!["generate", "-m", &folder, "--prompt-ids", &prompt, "--json", "--logprobs", "5"];
        arguments.extend(GREEDY);
        let object = json(&arguments, "");
        assert_eq!(ids(&object), case.tokens.iter().map(|&id| u64::from(id)).collect::<Vec<_>>());
        let logprob = object["tokens"][0]["logprob"].as_f64().expect("a number");
        assert!((logprob - f64::from(case.logprobs[0])).abs() < 1e-3);
        assert_eq!(object["tokens"][0]["top"].as_array().expect("a list").len(), 5);
    }
}

#[test]
fn the_json_output_keeps_its_fields() {
    let folder = model("llama-f32");
    let arguments =
        ["generate", "-m", &folder, "-p", "The keeper", "--max-tokens", "4", "--seed", "9", "--json"];
    let object = json(&arguments, "");
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    let expected = ["text", "tokens", "finish_reason", "usage", "timings", "seed", "exactness", "request"];
    assert_eq!(keys(&object), expected);
    assert_eq!(keys(&object["tokens"][0]), ["id", "text"]);
    assert_eq!(keys(&object["usage"]), ["prompt_tokens", "cached_tokens", "completion_tokens"]);
    let timings = ["load_s", "prefill_s", "decode_s", "prefill_tps", "decode_tps", "drafted", "accepted"];
    assert_eq!(keys(&object["timings"]), timings);
    assert_eq!(object["seed"], 9);
    assert_eq!(ids(&json(&arguments, "")), ids(&object), "the same seed gives the same tokens");
}

/// Each sampling flag reaches the sampler: it changes the drawn tokens.
#[test]
fn every_sampling_flag_changes_the_answer() {
    let folder = model("llama-f32");
    let generate = |flags: &[&str]| {
        let base = ["generate", "-m", &folder, "--prompt-ids", "1,9,30,9,30", "--ignore-eos", "--json"];
        ids(&json(&[&base[..], &["--max-tokens", "40"], flags].concat(), ""))
    };
    let greedy = generate(&["--temperature", "0"]);
    let banned = format!("{}=-inf", greedy[0]);
    for flags in [
        &["--repetition-penalty", "1.8"][..],
        &["--frequency-penalty", "2"],
        &["--presence-penalty", "2"],
        &["--dry-multiplier", "5", "--dry-allowed-length", "1", "--dry-sequence-breaker", "none"],
        &["--logit-bias", &banned],
    ] {
        assert_ne!(generate(&[&["--temperature", "0"], flags].concat()), greedy, "{flags:?}");
    }
    let off = ["--temperature", "0", "--repetition-penalty", "1.8", "--penalty-last-n", "0"];
    assert_eq!(generate(&off), greedy, "a window of 0 is off");
    let plain = generate(&["--seed", "3"]);
    for flags in [
        ["--temperature", "0.3"],
        ["--top-k", "2"],
        ["--top-p", "0.3"],
        ["--min-p", "0.6"],
        ["--typical-p", "0.2"],
        ["--seed", "4"],
    ] {
        assert_ne!(generate(&[&["--seed", "3"], &flags[..]].concat()), plain, "{flags:?}");
    }
    let xtc = ["--seed", "3", "--xtc-probability", "1", "--xtc-threshold", "0.02"];
    assert_ne!(generate(&xtc), plain);
    assert_eq!(generate(&["--seed", "3", "--top-k", "1"]), greedy);
}

#[test]
fn score_prints_log_probabilities() {
    let folder = model("llama-f32");
    let case = &golden::cases("llama-f32").cases[0];
    let text: Vec<String> = case.prompt_ids.iter().chain(&case.tokens).map(u32::to_string).collect();
    let text = text.join(",");
    let object = json(&["score", "-m", &folder, "--prompt-ids", &text, "--logprobs", "2", "--json"], "");
    let tokens = object["tokens"].as_array().expect("a list");
    assert!(tokens[0]["logprob"].is_null());
    assert_eq!(tokens[1]["top"].as_array().expect("a list").len(), 2);
    let number = |value: &Value| value.as_f64().expect("a number");
    for (token, expected) in tokens[case.prompt_ids.len()..].iter().zip(&case.logprobs) {
        assert!((number(&token["logprob"]) - f64::from(*expected)).abs() < 2e-3);
    }
    let total: f64 = tokens[1..].iter().map(|token| number(&token["logprob"])).sum();
    assert!((number(&object["total_logprob"]) - total).abs() < 1e-6);
    let perplexity = (-total / (tokens.len() - 1) as f64).exp();
    assert!((number(&object["perplexity"]) / perplexity - 1.0).abs() < 1e-9);
    let piped = mlx(&["score", "-m", &folder], "The keeper counts the waves");
    assert!(stdout(&piped).contains("perplexity"), "{}", stderr(&piped));
}

#[test]
fn a_prompt_can_be_piped_in_and_raw_text_gets_no_template() {
    let folder = model("llama-f32");
    let base = ["generate", "-m", &folder, "--max-tokens", "1", "--temperature", "0", "--json"];
    let count = |extra: &[&str], input| {
        let object = json(&[&base[..], extra].concat(), input);
        object["usage"]["prompt_tokens"].as_u64().expect("a count")
    };
    let direct = count(&["-p", "The waves"], "");
    assert_eq!(count(&[], "The waves"), direct);
    assert_eq!(count(&["-p", "-"], "The waves"), direct);
    assert!(count(&["--raw", "-p", "The waves"], "") < direct);
    assert!(count(&["--system", "Be brief.", "-p", "The waves"], "") > direct);
}

#[test]
fn text_goes_to_standard_output_and_statistics_to_standard_error() {
    let folder = model("llama-spm-f32");
    let quiet = mlx(&[&["generate", "-m", &folder, "-p", "Waves", "--raw"], &GREEDY[..]].concat(), "");
    let verbose =
        mlx(&[&["generate", "-v", "-m", &folder, "-p", "Waves", "--raw"], &GREEDY[..]].concat(), "");
    assert_eq!(stdout(&quiet), stdout(&verbose));
    assert_eq!(stderr(&quiet), "");
    for word in ["load", "tok/s", "peak memory", "seed"] {
        assert!(stderr(&verbose).contains(word), "{}", stderr(&verbose));
    }
}

#[test]
fn inspect_describes_a_model_without_reading_its_weights() {
    let copy = model_copy("llama-mixed-f32");
    let path = copy.path().join("model.safetensors");
    let size = std::fs::metadata(&path).expect("a file").len();
    // Zeros after the header do not change the report.
    let header = std::fs::read(&path).expect("a file");
    let end = 8 + u64::from_le_bytes(header[..8].try_into().expect("eight bytes")) as usize;
    let file = std::fs::File::create(&path).expect("a file");
    (&file).write_all(&header[..end]).expect("it can be written");
    file.set_len(size).expect("it can be written");
    let folder = copy.path().to_str().expect("utf-8");
    let object = json(&["inspect", "-m", folder, "--json"], "");
    assert_eq!(
        (&object["family"], &object["layers"], &object["context"]),
        (&"llama".into(), &2.into(), &256.into())
    );
    let weights = object["weights"].as_array().expect("a list");
    let sum =
        |list: &[Value], key: &str| list.iter().map(|it| it[key].as_u64().expect("a count")).sum::<u64>();
    for key in ["parameters", "file_bytes", "device_bytes"] {
        assert_eq!(sum(weights, key), object[key].as_u64().expect("a count"), "{key}");
    }
    let forms: Vec<&Value> = weights.iter().map(|kind| &kind["form"]).collect();
    let affine = |bits, group| Value::from(format!("affine {bits} bits, groups of {group}"));
    let expected =
        [affine(2, 32), affine(3, 64), affine(4, 32), affine(5, 32), affine(6, 64), Value::from("f32")];
    assert_eq!(forms, expected.iter().collect::<Vec<_>>());
    // Keys and values in two layers with two heads of size 16.
    assert_eq!(object["cache_bytes_per_token"], 2 * 2 * 2 * 16 * 4);
    let bytes = |more: &[&str]| {
        let object = json(&[&["inspect", "-m", folder, "--json"], more].concat(), "");
        sum(std::slice::from_ref(&object), "device_bytes")
    };
    let half = json(&["inspect", "-m", folder, "--json", "--dtype", "bfloat16"], "");
    assert_eq!(half["device_dtype"], "bf16");
    assert!(bytes(&["--dtype", "bfloat16"]) < bytes(&[]));
    assert_eq!(bytes(&["--dtype", "f32", "--keep-quantized"]), bytes(&[]));
    if is_cpu() {
        assert!(bytes(&[]) < bytes(&["--dtype", "f32"]));
    }
    let text = stdout(&mlx(&["inspect", "-m", folder, "--memory-budget", "1KB"], ""));
    assert!(text.contains("affine 6 bits, groups of 64") && text.contains("memory_budget"), "{text}");
    let missing = mlx(&["inspect", "-m", "no-such-folder"], "");
    assert!(stderr(&missing).contains("no-such-folder") && missing.status.code() == Some(1));
}

#[test]
fn quantized_weights_can_be_kept_and_dequantization_is_logged() {
    let folder = model("llama-q4-f16");
    let mut arguments = vec!["generate", "-m", &folder, "--raw", "-p", "The", "-v", "--dtype", "f32"];
    arguments.extend(GREEDY);
    let unpacked = mlx(&arguments, "");
    arguments.push("--keep-quantized");
    let packed = mlx(&arguments, "");
    assert!(unpacked.status.success() && packed.status.success(), "{}{}", stderr(&unpacked), stderr(&packed));
    assert_eq!(stdout(&unpacked), stdout(&packed));
    if is_cpu() {
        let notes = stderr(&unpacked);
        assert!(notes.contains("keep_quantized") && notes.contains("memory="), "{notes}");
    }
    assert!(!stderr(&packed).contains("keep_quantized"), "{}", stderr(&packed));
}

#[test]
fn the_float_type_can_be_chosen() {
    let folder = model("llama-f16");
    let answer = |arguments: &[&str]| {
        let mut all = vec!["generate", "-m", &folder, "--raw", "-p", "The", "--json", "--logprobs", "2"];
        all.extend(GREEDY);
        all.extend(arguments);
        json(&all, "")["tokens"].clone()
    };
    let [single, half, own] = ["f32", "float16", "checkpoint"].map(|name| answer(&["--dtype", name]));
    assert_eq!(half, own);
    assert_ne!(half, single, "f16 and f32 must give different log probabilities");
    let refused = mlx(&["generate", "-m", &folder, "-p", "The", "--dtype", "int8"], "");
    assert!(
        stderr(&refused).contains("--dtype") && stderr(&refused).contains("bf16"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(refused.status.code(), Some(2));
    if is_cpu() {
        let refused =
            mlx(&["generate", "-m", &model("mixtral-f32"), "--raw", "-p", "The", "--dtype", "f16"], "");
        assert!(stderr(&refused).contains("--dtype cannot be f16"), "{}", stderr(&refused));
        let unseen = mlx(&["inspect", "-m", &model("mixtral-f32"), "--dtype", "f16"], "");
        assert_eq!(stderr(&unseen), stderr(&refused));
        assert_eq!(refused.status.code(), Some(2));
    }
}

#[test]
fn help_names_every_command_and_flag() {
    let help = stdout(&mlx(&["--help"], ""));
    assert!(help.contains("generate") && help.contains("chat"));
    let help = stdout(&mlx(&["generate", "--help"], ""));
    for flag in
        ["--prompt-ids", "--max-tokens", "--seed", "--stop", "--ignore-eos", "--raw", "--logprobs", "--json"]
    {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let script = mlx(&["completions", "bash"], "");
    assert!(script.status.success() && stdout(&script).contains("MLX_COMPLETE"));
    let mut shell = Command::new(env!("CARGO_BIN_EXE_mlx"));
    shell.args(["--", "mlx", "generate", "--max-"]).env("MLX_COMPLETE", "fish");
    assert!(stdout(&piped(shell, "")).contains("--max-tokens"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = mlx(&["man", folder.path().to_str().expect("utf-8")], "");
    assert!(pages.status.success(), "{}", stderr(&pages));
    let page = std::fs::read_to_string(folder.path().join("mlx-chat.1")).expect("a page for each command");
    assert!(page.contains("session"));
}
