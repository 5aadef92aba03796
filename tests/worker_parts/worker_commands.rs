//! Chat, score and bench with a worker: their output equals that without workers, and the worker reads its shard.

use std::path::Path;
use std::process::Command;

use mlx_tests::divisible::wide_llama;
use mlx_tests::piped;
use mlx_tests::worker_process::WorkerProcess;
use serde_json::Value;

use super::{KEY, MLX, flags};

/// Returns the output of a command.
fn output(folder: &Path, words: &[&str], flags: &[String], input: &str) -> String {
    let mut command = Command::new(MLX);
    command.args(words).args(flags).arg("-m").arg(folder);
    let output = piped(command, input);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the output of a command without and with a worker.
fn both(words: &[&str], input: &str) -> [String; 2] {
    let folder = wide_llama(4);
    let folder = folder.path();
    std::fs::write(folder.join("key"), KEY).expect("it can be written");
    let whole = std::fs::metadata(folder.join("model.safetensors")).expect("it is there").len();
    let workers = [WorkerProcess::start(MLX, folder, "0")];
    let before = workers[0].bytes_read();
    let alone = output(folder, words, &[], input);
    let divided = output(folder, words, &flags(folder, &workers, "pipeline"), input);
    if let Some(before) = before {
        let after = workers[0].bytes_read().expect("as before");
        assert!(after - before > whole * 2 / 5, "{words:?}: the worker has read {} bytes", after - before);
    }
    [alone, divided]
}

#[test]
fn a_chat_has_the_same_answers() {
    let words = ["chat", "--temperature", "0", "--max-tokens", "8", "--ignore-eos"];
    let [alone, divided] = both(&words, "One?\nTwo?\n/quit\n");
    assert_eq!(divided, alone);
    assert_eq!(alone.lines().count(), 2, "{alone:?}");
}

#[test]
fn a_text_has_the_same_score() {
    let [alone, divided] = both(&["score", "--json", "--logprobs", "2"], "The keeper counts the waves");
    assert_eq!(divided, alone);
    assert!(alone.contains("total_logprob"), "{alone}");
}

#[test]
fn bench_measures_all_machines_also_beside_another_program() {
    let words =
        ["bench", "--prompt-lengths", "8", "--generate", "4", "--batch", "1,2", "--repeat", "1", "--json"];
    for (workers, text) in both(&[&words[..], &["--compare", "true"]].concat(), "").iter().enumerate() {
        let found: Value = serde_json::from_str(text).expect("json");
        let result = &found["results"][0];
        let peaks = result["worker_peak_bytes"].as_array().expect("a list");
        assert_eq!(peaks.len(), workers, "{found}");
        let is_measured = |peak: &Value| peak.as_u64().is_some_and(|bytes| bytes > 100_000);
        assert!(is_measured(&result["peak_bytes"]) && peaks.iter().all(is_measured), "{found}");
        assert_eq!(found["results"].as_array().map(Vec::len), Some(2), "{found}");
        assert!(found["comparisons"][0]["ours_s"].is_object(), "{found}");
    }
}

#[test]
fn a_check_measures_each_link_and_names_the_better_way() {
    let folder = wide_llama(4);
    let folder = folder.path();
    std::fs::write(folder.join("key"), KEY).expect("it can be written");
    let workers = [WorkerProcess::start(MLX, folder, "0"), WorkerProcess::start(MLX, folder, "0")];
    // The first two are for the way to split, which this command has none of.
    let flags = &flags(folder, &workers, "pipeline")[2..];
    let text = output(folder, &["cluster", "check"], flags, "");
    for (rank, worker) in (1..).zip(&workers) {
        let name = format!("rank {rank} (127.0.0.1:{}): round trip ", worker.port);
        assert_eq!(text.matches(&name).count(), 1, "{text}");
    }
    let group = text.lines().find_map(|line| line.strip_prefix("ring: to the next machine "));
    let figures: Vec<f64> = group
        .expect("the group is measured")
        .split(&[' ', ';', ','])
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(figures.len() == 4 && figures.iter().all(|figure| *figure > 0.0), "{text}");
    let rate = |line: &str| line.split_once(": about ")?.1.split(' ').next()?.parse::<f64>().ok();
    let pipeline = text.lines().find(|line| line.starts_with("--parallel pipeline")).and_then(rate);
    assert!(pipeline.is_some_and(|rate| rate > 0.0), "{text}");
    // Three machines cannot share two key heads.
    assert!(
        text.contains("--parallel tensor: not possible: ") && text.contains("num_key_value_heads"),
        "{text}"
    );
    assert!(text.ends_with("use --parallel pipeline\n"), "{text}");
    let [_, second] = workers;
    let port = second.port.clone();
    drop(second);
    let mut command = Command::new(MLX);
    let output = piped(
        {
            command.args(["cluster", "check"]).args(flags);
            command
        },
        "",
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains(&format!("rank 2 (127.0.0.1:{port})")), "{error}");
}
