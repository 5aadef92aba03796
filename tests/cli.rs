//! The program as a user runs it: output, error messages and exit codes.

mod asking;
mod piped_chats;
mod thoughts;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mlx_tests::{golden, model_copy, model_folder, piped};
use serde_json::Value;

/// Runs `mlx` with these arguments and this text piped in.
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

/// The output object of `generate --json`.
fn json(arguments: &[&str], input: &str) -> Value {
    let output = mlx(arguments, input);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one json object")
}

fn ids(object: &Value) -> Vec<u64> {
    let tokens = object["tokens"].as_array().expect("a list");
    tokens.iter().map(|token| token["id"].as_u64().expect("an id")).collect()
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
fn failures_print_one_line_and_have_an_exit_code() {
    let folder = model("llama-f32");
    let run = |arguments: &[&str]| {
        let output = mlx(&[&["generate", "-m"], arguments].concat(), "");
        assert_eq!(stdout(&output), "");
        (output.status.code(), stderr(&output))
    };
    let (code, message) = run(&["no-such-folder", "-p", "x"]);
    assert_eq!((code, message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.starts_with("error: no-such-folder"), "{message}");
    for (arguments, word) in [
        (&["--temperature", "-1"][..], "temperature"),
        (&["--top-p", "1.5"], "--top-p"),
        (&["--repetition-penalty", "0"], "--repetition-penalty"),
        (&["--penalty-last-n", "-2"], "--penalty-last-n"),
        (&["--dry-base", "0.5"], "--dry-base"),
        (&["--xtc-probability", "7"], "--xtc-probability"),
        (&["--logit-bias", "5:1"], "logit-bias"),
        (&["--logit-bias", "5=1e9"], "--logit-bias"),
        (&["--logit-bias", "999999=5"], "--logit-bias"),
        (&["--stop", ""], "stop"),
        (&["--logprobs", "21", "--json"], "logprobs"),
        (&["--max-tokens", "many"], "max-tokens"),
        (&["--no-such-flag"], "no-such-flag"),
    ] {
        let (code, message) = run(&[&[folder.as_str(), "-p", "x"], arguments].concat());
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(word), "{message}");
    }
    let (code, message) = run(&[&folder, "--prompt-ids", "1,99999"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("99999"), "{message}");
}

#[test]
fn flags_without_effect_are_refused() {
    let folder = model("llama-f32");
    for (arguments, word) in [
        (&["bench", "-m", &folder, "--prompt-cache-dir", "x"][..], "--prompt-cache-dir"),
        (&["cache", "list", "--prompt-cache-dir", "no-such-folder"], "no-such-folder"),
        (&["score", "-m", "no-such-folder", "-t", "x", "--json", "--logprobs", "21"], "--logprobs"),
        (&["generate", "-m", "no-such-folder", "-p", "x", "--top-p", "2"], "--top-p is 2"),
    ] {
        let output = mlx(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

/// A failed generation prints one line to standard error, which may be closed.
#[test]
fn invalid_logits_are_reported_in_one_line() {
    let copy = mlx_tests::model_copy("llama-f32");
    let config = copy.path().join("config.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("json");
    value["rms_norm_eps"] = 3e38.into();
    value["rope_scaling"] = serde_json::json!({"type": "linear", "factor": 1e-38});
    std::fs::write(&config, value.to_string()).expect("it can be written");
    let folder = copy.path().to_str().expect("utf-8");
    let output = mlx(&["generate", "-m", folder, "--prompt-ids", "1,2,3,4,5", "--max-tokens", "3"], "");
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
}

/// The tokenizer library panics on these files; the user sees one sentence.
#[test]
fn an_inconsistent_tokenizer_is_reported_in_one_line() {
    let broken = [
        ("normalizer", serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("normalizer", serde_json::json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
        ("decoder", serde_json::json!({"type": "Nonesuch"})),
    ];
    let mut refused = 0;
    for (key, value) in broken {
        let copy = mlx_tests::model_copy("llama-f32");
        let path = copy.path().join("tokenizer.json");
        let mut object: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        object[key] = value;
        std::fs::write(&path, object.to_string()).expect("it can be written");
        let folder = copy.path().to_str().expect("utf-8");
        let output = mlx(&["generate", "-m", folder, "--prompt-ids", "1", "--max-tokens", "1"], "");
        // The library may accept a file that looks broken; only the form of a refusal matters.
        if !output.status.success() {
            assert_eq!(
                (output.status.code(), stderr(&output).lines().count()),
                (Some(1), 1),
                "{}",
                stderr(&output)
            );
            assert!(stderr(&output).contains("tokenizer.json"), "{}", stderr(&output));
            refused += 1;
        }
    }
    assert!(refused >= 2, "{refused} of three were refused");
}

#[test]
fn inspect_describes_a_model_without_reading_its_weights() {
    let copy = model_copy("llama-mixed-f32");
    let path = copy.path().join("model.safetensors");
    let size = std::fs::metadata(&path).expect("a file").len();
    // With zeros after the header, the report is the same.
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
    // Keys and values of two layers with two heads of size 16.
    assert_eq!(object["cache_bytes_per_token"], 2 * 2 * 2 * 16 * 4);
    let bytes = |more: &[&str]| {
        let object = json(&[&["inspect", "-m", folder, "--json"], more].concat(), "");
        sum(std::slice::from_ref(&object), "device_bytes")
    };
    let half = json(&["inspect", "-m", folder, "--json", "--dtype", "bfloat16"], "");
    assert_eq!(half["device_dtype"], "bf16");
    assert!(bytes(&["--dtype", "bfloat16"]) < bytes(&[]));
    assert_eq!(bytes(&["--dtype", "f32", "--keep-quantized"]), bytes(&[]));
    if mlx_core::backend::device_name().expect("a device") == "cpu" {
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
    if mlx_core::backend::device_name().expect("a device") == "cpu" {
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
    assert_ne!(half, single, "log-probabilities to the last digit");
    let refused = mlx(&["generate", "-m", &folder, "-p", "The", "--dtype", "int8"], "");
    assert!(
        stderr(&refused).contains("--dtype") && stderr(&refused).contains("bf16"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(refused.status.code(), Some(2));
    if mlx_core::backend::device_name().expect("a device") == "cpu" {
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
fn saved_prompts_are_listed_reused_and_removed() {
    let (folder, cache) = (model("llama-f32"), tempfile::tempdir().expect("a temporary folder"));
    let cache = cache.path().to_str().expect("utf-8");
    let text = "The keeper counts the waves. ".repeat(6);
    let save = ["cache", "save", "-m", &folder, "--prompt-cache-dir", cache, "-p", &text];
    assert!(mlx(&save, "").status.success());
    let list = || stdout(&mlx(&["cache", "list", "--prompt-cache-dir", cache], ""));
    let listed = list();
    let name = listed.split_whitespace().next().expect("a name").to_owned();
    assert_eq!((listed.lines().count(), name.len()), (1, 16), "{listed}");
    let generate = ["generate", "-m", &folder, "--raw", "--json", "-p", &text];
    let cold = json(&[&generate[..], &GREEDY[..]].concat(), "");
    let warm = json(&[&generate[..], &GREEDY[..], &["--prompt-cache-dir", cache]].concat(), "");
    assert_eq!(cold["tokens"], warm["tokens"]);
    let cached = |answer: &Value| answer["usage"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached(&cold) == 0 && cached(&warm) >= 64, "{warm}");
    let rm = |name: &str| mlx(&["cache", "rm", "--prompt-cache-dir", cache, name], "");
    assert!(stderr(&rm("nonsense")).contains("nonsense is not saved"));
    assert!(rm(&name[..8]).status.success());
    assert_eq!(list(), "");
    let both =
        mlx(&["generate", "-m", &folder, "-p", "x", "--prompt-cache-dir", cache, "--prefix-cache", "0"], "");
    assert!(stderr(&both).contains("--prefix-cache"), "{}", stderr(&both));
}

/// A program killed at any moment leaves a cache folder that the next run can use.
#[test]
fn a_killed_program_leaves_a_usable_cache() {
    let (folder, cache) = (model("llama-f32"), tempfile::tempdir().expect("a temporary folder"));
    let cache = cache.path().to_str().expect("utf-8");
    let ids = |salt: usize| {
        (0..200).map(|index| ((index * 7 + salt) % 80 + 5).to_string()).collect::<Vec<_>>().join(",")
    };
    let arguments = |ids: &str| {
        let fixed = ["generate", "-m", &folder, "--json", "--prompt-ids", ids, "--prompt-cache-dir", cache];
        [&fixed[..], &GREEDY[..]].concat().into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let mut cut_short = 0;
    for salt in 0..12 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mlx"))
            .args(arguments(&ids(salt)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // Kill it while it writes: after the first file, and a little later each time.
        let before = files(cache);
        while files(cache) == before && child.try_wait().expect("it is our child").is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(150 * salt as u64));
        cut_short += usize::from(child.try_wait().expect("it is our child").is_none());
        child.kill().ok();
        child.wait().expect("it ends");
    }
    assert!(cut_short > 0, "no run was killed in its work");
    for salt in 0..12 {
        let ids = ids(salt);
        let owned = arguments(&ids);
        let warm = json(&owned.iter().map(String::as_str).collect::<Vec<_>>(), "");
        let cold = json(
            &[&["generate", "-m", &folder, "--json", "--prompt-ids", &ids][..], &GREEDY[..]].concat(),
            "",
        );
        assert_eq!(warm["tokens"], cold["tokens"], "run {salt}");
    }
}

/// The number of files in the folder, including temporary ones.
fn files(folder: &str) -> usize {
    let models = std::fs::read_dir(folder).into_iter().flatten().flatten();
    models.map(|model| std::fs::read_dir(model.path()).into_iter().flatten().count()).sum()
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
