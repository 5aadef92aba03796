//! Models split over two and four processes, in both ways: they answer as one process, also about pictures, and each reads only its shard.

mod worker_commands;

use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mlx_tests::divisible::{wide_llama, wide_mixture, with_layers};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{copied, golden_folder};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const MLX: &str = env!("CARGO_BIN_EXE_mlx");
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The tolerance of log probabilities for the order of sums.
const CLEAR: f64 = 1e-4;

/// Returns the output of `mlx generate` with these arguments.
fn generate(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(MLX);
    command.args(["generate", "--max-tokens", "20", "--temperature", "0", "--ignore-eos", "-m"]).arg(folder);
    let output = command.args(arguments).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the flags that split a model over these workers and the command. The key is in the model's folder.
fn flags(folder: &Path, workers: &[WorkerProcess], how: &str) -> Vec<String> {
    let others = workers.iter().map(|worker| format!("127.0.0.1:{}", worker.port));
    let hosts: Vec<Value> =
        iter::once("127.0.0.1".to_owned()).chain(others).map(|address| json!({ "ips": [address] })).collect();
    std::fs::write(folder.join("hosts.json"), json!(hosts).to_string()).expect("it can be written");
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (hosts, key) = (path("hosts.json"), path("key"));
    ["--parallel", how, "--hostfile", &hosts, "--worker-key-file", &key].map(str::to_owned).to_vec()
}

/// Returns the output of `mlx generate` with workers for all shards but the first.
fn with_workers(folder: &Path, workers: &[WorkerProcess], how: &str, arguments: &[&str]) -> String {
    let flags = flags(folder, workers, how);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    generate(folder, &[arguments, &flags].concat())
}

#[test]
fn each_process_reads_its_part() {
    let folder = wide_llama(4);
    std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
    let whole = std::fs::metadata(folder.path().join("model.safetensors")).expect("it is there").len();
    let arguments = ["--prompt-ids", "1,9,30,77,12"];
    let alone = generate(folder.path(), &arguments);
    for how in ["pipeline", "tensor"] {
        let workers = [WorkerProcess::start(MLX, folder.path(), "0")];
        let before = workers[0].bytes_read();
        assert_eq!(with_workers(folder.path(), &workers, how, &arguments), alone, "{how}");
        if let Some(before) = before {
            let after = workers[0].bytes_read().expect("as before");
            let read = after - before;
            // The second process of a pipeline reads a little more: rank 0 has the embedding and the head.
            assert!(read > whole * 2 / 5 && read < whole * 3 / 5, "{how}: {read} of {whole} bytes");
        }
    }
}

/// Returns a tiny four-layer checkpoint of this family that four processes can split, in f32 and in 4 bits.
fn divisible(family: &str) -> TempDir {
    if family == "llama" {
        return wide_llama(4);
    }
    let folder = with_layers(&format!("{family}-f32"), 4);
    if family == "qwen3_5" {
        return folder;
    }
    // The source may be given by its absolute path.
    wide_mixture(folder.path().to_str().expect("UTF-8"))
}

/// Converts a model to 4 bits, into a subfolder of it.
pub(crate) fn in_four_bits(folder: &Path) -> PathBuf {
    let target = folder.join("packed");
    let mut command = Command::new(MLX);
    command.args(["convert", "--bits", "4", "--group-size", "32", "-m"]).arg(folder).arg("-o").arg(&target);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target
}

/// Returns the tokens of a JSON answer, each with its log probability and the two likeliest.
fn tokens(answer: &str) -> Vec<Value> {
    let object: Value = serde_json::from_str(answer).expect("json");
    object["tokens"].as_array().expect("a list").clone()
}

/// Returns true if the gap between the best two tokens is so large that the order of sums does not decide.
fn is_clear(token: &Value) -> bool {
    let logprob = |place: usize| token["top"][place]["logprob"].as_f64().expect("a number");
    logprob(0) - logprob(1) > CLEAR
}

/// Compares two answers up to a difference at a token that is not clearly the best. Returns the number of equal tokens.
fn compare(alone: &[Value], divided: &[Value], what: &str) -> usize {
    let differs = |place: &usize| alone[*place]["id"] != divided[*place]["id"];
    let Some(place) = (0..alone.len()).find(differs) else { return alone.len() };
    assert!(!is_clear(&alone[place]), "{what}, token {place}: {} and {}", alone[place], divided[place]);
    place
}

fn answer_as_one(folder: &Path, family: &str, format: &str) {
    std::fs::write(folder.join("key"), KEY).expect("it can be written");
    let workers: Vec<WorkerProcess> = (0..3).map(|_| WorkerProcess::start(MLX, folder, "0")).collect();
    let arguments = ["--prompt-ids", "1,9,30,77,12", "--json", "--logprobs", "2"];
    let alone = tokens(&generate(folder, &arguments));
    for count in [1, 3] {
        let what = format!("{family}{format}, {count} workers");
        let with = |how| tokens(&with_workers(folder, &workers[..count], how, &arguments));
        assert_eq!(with("pipeline"), alone, "{what}");
        let divided = with("tensor");
        let same = compare(&alone, &divided, &what);
        assert!(same >= 10, "{what}: {same} tokens were compared");
        // Processes that wait for each other use all processors, so other families would take long.
        if family == "llama" {
            assert_eq!(with("tensor"), divided, "{what}: the bits of another run");
        }
    }
}

#[test]
fn two_and_four_processes_answer_as_one() {
    for family in ["llama", "qwen3_moe", "gpt_oss", "qwen3_5"] {
        let folder = divisible(family);
        answer_as_one(folder.path(), family, "");
        answer_as_one(&in_four_bits(folder.path()), family, " in 4 bits");
    }
}

#[test]
fn two_processes_see_a_picture() {
    let folder = copied(&golden_folder().join("pictures/mistral3-f32"));
    std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
    let picture = golden_folder().join("pictures/mistral3-f32/48x32.png");
    let arguments = ["-p", "What is this?", "--image", picture.to_str().expect("UTF-8")];
    let alone = generate(folder.path(), &arguments);
    assert_ne!(generate(folder.path(), &arguments[..2]), alone, "the picture must change the answer");
    for how in ["pipeline", "tensor"] {
        let workers = [WorkerProcess::start(MLX, folder.path(), "0")];
        assert_eq!(with_workers(folder.path(), &workers, how, &arguments), alone, "{how}");
    }
}
