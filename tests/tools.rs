//! `mlx convert`, `mlx score`, `mlx bench` and `mlx doctor` as a user runs them.

use std::process::{Command, Output};

use mlx_tests::{device, exact_level, golden_folder, model_folder, piped};
use serde_json::Value;

fn mlx(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    piped(command, input)
}

/// Returns the output of a successful command.
fn output(arguments: &[&str], input: &str) -> String {
    let output = mlx(arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("output is utf-8")
}

fn json(arguments: &[&str], input: &str) -> Value {
    serde_json::from_str(&output(arguments, input)).expect("one json object")
}

/// Returns the exit code and the message of a failing command.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = mlx(arguments, "");
    (output.status.code().expect("it ends by itself"), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn model(name: &str) -> String {
    model_folder(name).to_str().expect("a path of this repository is utf-8").to_owned()
}

#[test]
fn an_adapter_goes_through_every_command() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let (source, fused) = (model("llama-f32"), work.path().join("fused"));
    let fused = fused.to_str().expect("utf-8");
    let adapter = golden_folder().join("adapters/lora");
    let adapter = ["--adapter", adapter.to_str().expect("utf-8")];
    output(&[&["convert", &source, "-o", fused][..], &adapter].concat(), "");
    let all = |command: &[&str]| {
        let plain = json(&[command, &["-m", &source]].concat(), "");
        let changed = json(&[command, &["-m", &source], &adapter].concat(), "");
        (plain, changed, json(&[command, &["-m", fused]].concat(), ""))
    };
    let (plain, changed, of_fused) =
        all(&["generate", "--json", "--raw", "-p", "The waves", "--max-tokens", "12", "--temperature", "0"]);
    assert_eq!(changed["text"], of_fused["text"], "{changed}");
    assert_ne!(changed["text"], plain["text"], "{plain}");
    let (plain, changed, of_fused) = all(&["score", "--json", "--prompt-ids", "5,6,7,8,9,10"]);
    let sum = |object: &Value| object["perplexity"].as_f64().expect("a number");
    assert!((sum(&changed) / sum(&of_fused) - 1.0).abs() < 1e-3, "{changed} {of_fused}");
    assert!((sum(&changed) / sum(&plain) - 1.0).abs() > 1e-2, "{changed} {plain}");
    let (plain, changed, _) = all(&["inspect", "--json"]);
    let about = &changed["adapters"][0];
    assert_eq!((&about["type"], &about["rank"], &about["modules"]), (&"lora".into(), &4.into(), &14.into()));
    let bytes = |object: &Value| object["device_bytes"].as_u64().expect("a number");
    assert_eq!(bytes(&changed), bytes(&plain) + bytes(about));
    let text = output(&[&["inspect", "-m", &source][..], &adapter].concat(), "");
    assert!(text.contains("lora of rank 4, 14 modules"), "{text}");
    let chat = piped(
        {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
            command.args(["chat", "-m", &source, "--max-tokens", "4"]).args(adapter);
            command
        },
        "Hello\n",
    );
    assert!(chat.status.success(), "{}", String::from_utf8_lossy(&chat.stderr));
    let bench = json(
        &[
            &[
                "bench",
                "-m",
                &source,
                "--json",
                "--prompt-lengths",
                "8",
                "--generate",
                "4",
                "--batch",
                "1",
                "--repeat",
                "1",
            ][..],
            &adapter,
        ]
        .concat(),
        "",
    );
    assert!(bench.is_object(), "{bench}");
    let (code, message) = failure(&["generate", "-m", &source, "-p", "a", "--adapter", &source]);
    assert!(code == 1 && message.contains("has no adapter_config.json"), "{code}: {message}");
    let empty = tempfile::tempdir().expect("a temporary folder");
    let empty = empty.path().to_str().expect("utf-8");
    let (code, message) = failure(&["generate", "-m", &source, "-p", "a", "--adapter", empty]);
    assert!(code == 1 && message.contains("has no adapter_config.json"), "{code}: {message}");
    let lora = golden_folder().join("adapters/lora");
    let (code, message) = failure(&["generate", "-m", lora.to_str().expect("utf-8"), "-p", "a"]);
    assert!(code == 1 && message.contains("is an adapter"), "{code}: {message}");
}

/// Kimi's tower is not supported: the command's output names it.
#[test]
fn a_conversion_says_what_it_leaves_out() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let target = work.path().join("out");
    let target = target.to_str().expect("utf-8");
    let report = output(&["convert", &model("kimi_k25-f32"), "-o", target, "--dtype", "bf16"], "");
    let words = "skipped, because this program cannot use them: mm_projector, vision_tower";
    assert!(report.lines().any(|line| line == words), "{report}");
}

#[test]
fn a_converted_model_generates() {
    let work = tempfile::tempdir().expect("a temporary folder");
    let (source, target) = (model("llama-f32"), work.path().join("out"));
    let target = target.to_str().expect("utf-8");
    let report = output(&["convert", &source, "-o", target, "--bits", "4", "--dtype", "bf16"], "");
    assert!(report.contains("2 matrices quantized") && report.contains("not quantized"), "{report}");
    assert!(report.contains("\nquality: perplexity ") && report.contains(" on 256 tokens"), "{report}");
    let generated =
        output(&["generate", "-m", target, "-p", "Waves", "--max-tokens", "4", "--temperature", "0"], "");
    assert!(!generated.trim().is_empty());
    let inspected = json(&["inspect", "-m", target, "--json"], "");
    let forms: Vec<&Value> =
        inspected["weights"].as_array().expect("a list").iter().map(|kind| &kind["form"]).collect();
    assert_eq!(forms, ["affine 4 bits, groups of 64", "bf16"]);
    let (code, message) = failure(&["convert", &source, "-o", target, "--bits", "4"]);
    assert!(code == 1 && message.contains("--force"), "{code}: {message}");
    for (flags, words) in [
        (&["--bits", "7"][..], "--bits is 7"),
        (&["--mode", "mxfp4", "--group-size", "64"], "--group-size is 64"),
        (&["--rule", "*=4"], "--rule *=4 does not fit"),
        (&["--dtype", "bf16", "--group-size", "32"], "--bits is missing"),
    ] {
        let (code, message) = failure(&[&["convert", &source, "-o", target][..], flags].concat());
        assert!(code == 2 && message.contains(words), "{flags:?} {code}: {message}");
    }
}

#[test]
fn a_text_longer_than_the_context_is_scored_in_windows() {
    let folder = model("llama-f32");
    let corpus = golden_folder().join("corpus.txt");
    let file = corpus.to_str().expect("utf-8");
    let base = ["score", "-m", &folder, "--file", file];
    let windowed = json(&[&base[..], &["--json"]].concat(), "");
    let tokens = windowed["tokens"].as_array().expect("a list");
    let count = tokens.len();
    assert!(count > 3 * 256, "{count} tokens are no long text");
    assert_eq!(windowed["windows"].as_u64().expect("a number") as usize, (count - 256).div_ceil(128) + 1);
    let text: String = tokens.iter().map(|token| token["text"].as_str().expect("a text")).collect();
    assert_eq!(text, std::fs::read_to_string(&corpus).expect("a text"));
    let logprob = |token: &Value| token["logprob"].as_f64();
    assert!(logprob(&tokens[0]).is_none() && tokens[1..].iter().all(|token| logprob(token).is_some()));
    // The new tokens of the second window have the scores of a run over only that window.
    let ids: Vec<String> = tokens[128..384].iter().map(|token| token["id"].to_string()).collect();
    let second = json(&["score", "-m", &folder, "--json", "--prompt-ids", &ids.join(",")], "");
    let second = second["tokens"].as_array().expect("a list");
    for (one, other) in tokens[256..384].iter().zip(&second[128..]) {
        assert_eq!(logprob(one), logprob(other));
    }
    let closer = json(&[&base[..], &["--json", "--stride", "64"]].concat(), "");
    assert_eq!(closer["tokens"].as_array().expect("a list").len(), count);
    assert!(closer["windows"].as_u64() > windowed["windows"].as_u64());
    for stride in ["0", "256"] {
        let (code, message) = failure(&[&base[..], &["--stride", stride]].concat());
        assert!(code == 2 && message.contains("--stride"), "{message}");
    }
}

#[test]
fn scores_are_printed_as_text_html_and_json() {
    let folder = model("llama-f32");
    let text = "The <b>keeper</b> & \"the sea\"\n";
    let marked = output(&["score", "-m", &folder, "--format", "text", "-t", text], "");
    assert!(
        marked.contains("[below 1 %]") && marked.contains("perplexity") && !marked.contains('\u{1b}'),
        "{marked}"
    );
    let plain: String =
        marked.split("\n\n").next().expect("the text").chars().filter(|it| !"[]".contains(*it)).collect();
    assert_eq!(plain.trim_end(), text.trim_end());
    let work = tempfile::tempdir().expect("a temporary folder");
    let page = work.path().join("page.html");
    let flags = ["--format", "html", "--logprobs", "2", "-o", page.to_str().expect("utf-8"), "--file", "-"];
    assert_eq!(output(&[&["score", "-m", &folder][..], &flags].concat(), text), "");
    let page = std::fs::read_to_string(page).expect("it was written");
    assert!(!page.contains("<b>") && page.contains("&lt;") && !page.contains("http"), "{page}");
    let spans = page.matches("<span style").count();
    let tokens =
        json(&["score", "-m", &folder, "--json", "-t", text], "")["tokens"].as_array().expect("a list").len();
    assert_eq!(spans, tokens + 6, "one for each token, six in the legend");
    assert!(page.matches("&#10;").count() >= 3 * (tokens - 1), "a token's probability and two alternatives");
    let (code, message) = failure(&["score", "-m", &folder, "-t", text, "--logprobs", "2"]);
    assert!(code == 2 && message.contains("json and html"), "{message}");
}

#[test]
fn bench_measures_and_compares() {
    let folder = model("llama-f32");
    let flags = ["--prompt-lengths", "40,4000", "--generate", "8", "--batch", "1,3", "--repeat", "2"];
    let base = [&["bench", "-m", &folder][..], &flags].concat();
    let figures =
        json(&[&base[..], &["--json", "--compare", "test -d {model} -a {prompt_tokens} = 40"]].concat(), "");
    let results = figures["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2, "a prompt of 4000 tokens does not fit");
    for (result, batch) in results.iter().zip([1, 3]) {
        assert!(
            result["prompt_tokens"] == 40 && result["batch"] == batch && result["generate"] == 8,
            "{result}"
        );
        for key in ["prefill_tps", "decode_tps", "first_token_s"] {
            let number = |name: &str| result[key][name].as_f64().expect("a number");
            assert!(
                0.0 < number("least")
                    && number("least") <= number("median")
                    && number("median") <= number("most")
            );
        }
    }
    assert!(figures["comparisons"][0]["theirs_over_ours"].as_f64().expect("a number") < 1.0);
    for key in ["device", "mlx_version", "blas", "commit", "dtype"] {
        assert!(figures["about"][key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    let table = output(&base, "");
    assert!(table.contains("prefill") && table.contains("    40     3"), "{table}");
    let (code, message) = failure(&["bench", "-m", &folder, "--prompt-lengths", "4000"]);
    assert!(code == 2 && message.contains("--prompt-lengths"), "{code}: {message}");
    let (code, message) = failure(&[&base[..], &["--compare", "echo no such model >&2; exit 3"]].concat());
    assert!(code == 2 && message.contains("no such model"), "{code}: {message}");
}

#[test]
fn doctor_writes_a_report_about_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    output(&["doctor", &model("llama-f32"), "--report", file.to_str().expect("utf-8")], "");
    let text = std::fs::read_to_string(&file).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("json");
    let load = &report["model"]["under_load"];
    assert!(load["requests"] == 12 && load["identical"] == load["requests"], "{load}");
    assert_eq!(report["model"]["throughput"].as_array().map(Vec::len), Some(3));
    assert_eq!(report["doctor"]["steps"][0]["rows"], 1);
    let pipeline = &report["model"]["pipeline"];
    assert!(pipeline[0]["pipeline"] == "auto" && pipeline[1]["pipeline"] == "off", "{pipeline}");
    assert!(pipeline[1]["steps_ahead"] == 0 && pipeline[1]["measured"].is_object(), "{pipeline}");
    assert!(load["footprint_bytes"].as_u64() > load["reserved_bytes"].as_u64().map(|bytes| bytes / 2));
}

/// A GPU that reduces the precision of f32 products does so for many rows and not for one.
#[test]
fn f32_products_are_whole_unless_the_environment_says_otherwise() {
    assert_eq!(json(&["doctor", "--json"], "")["tf32"], false);
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["doctor", "--json"]).env("MLX_ENABLE_TF32", "1");
    let found: Value = serde_json::from_slice(&piped(command, "").stdout).expect("json");
    assert_eq!(found["tf32"], true);
}

#[test]
fn doctor_describes_the_machine_and_fails_on_a_fault() {
    let folder = model("llama-f32");
    let found = json(&["doctor", "--json", "-m", &folder], "");
    assert!(found["computes"] == true && found["broken"].as_array().is_some_and(Vec::is_empty), "{found}");
    assert!(found["gflops"]["f32"].as_f64().expect("a number") > 0.0);
    assert!(found["default_memory_budget"].as_u64().expect("a number") > 0);
    let level = {
        let _turn = device();
        exact_level(&model_folder("llama-f32")).as_str()
    };
    assert_eq!(found["model_exactness"], level);
    assert!(found["exact_widths"].as_array().expect("a list").contains(&8.into()), "{found}");
    let is_slow = found["slow"].to_string().contains("everything runs on the CPU");
    assert_eq!(is_slow, found["device"] == "cpu", "{found}");
    assert!(found["footprint_bytes"].as_u64() > Some(1 << 20), "{found}");
    let steps = found["steps"].as_array().expect("a list");
    assert!(steps.len() == 6 && steps.iter().all(|it| it["seconds"].as_f64() > Some(0.0)), "{found}");
    let text = output(&["doctor"], "");
    for word in ["device", "MLX", "BLAS", "memory", "exactness", "hub cache", "broken     nothing"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let broken = mlx(&["doctor", "-m", "no-such-folder"], "");
    let text = String::from_utf8_lossy(&broken.stdout);
    assert!(broken.status.code() == Some(1) && text.contains("no-such-folder"), "{text}");
}
