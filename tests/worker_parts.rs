//! What two processes have of a model in both ways of dividing it: they answer as one, with pictures too, and each reads its part.

use std::iter;
use std::path::Path;
use std::process::{Command, Stdio};

use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::workers::wide_llama;
use mlx_tests::{copied, golden_folder, model_copy};
use serde_json::{Value, json};

const MLX: &str = env!("CARGO_BIN_EXE_mlx");
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// What `mlx generate` writes with these arguments.
fn generate(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(MLX);
    command.args(["generate", "--max-tokens", "20", "--temperature", "0", "--ignore-eos", "-m"]).arg(folder);
    let output = command.args(arguments).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The same with workers for all parts but the first.
fn with_workers(folder: &Path, workers: &[WorkerProcess], how: &str, arguments: &[&str]) -> String {
    let others = workers.iter().map(|worker| format!("127.0.0.1:{}", worker.port));
    let hosts: Vec<Value> =
        iter::once("127.0.0.1".to_owned()).chain(others).map(|address| json!({ "ips": [address] })).collect();
    std::fs::write(folder.join("hosts.json"), json!(hosts).to_string()).expect("it can be written");
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (hosts, key) = (path("hosts.json"), path("key"));
    let more = ["--parallel", how, "--hostfile", &hosts, "--worker-key-file", &key];
    generate(folder, &[arguments, &more].concat())
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
        if let (Some(before), Some(after)) = (before, workers[0].bytes_read()) {
            let read = after - before;
            // Pipeline's second part is a little larger: rank 0 has the embedding and the head.
            assert!(read > whole * 2 / 5 && read < whole * 3 / 5, "{how}: {read} of {whole} bytes");
        }
    }
}

#[test]
fn two_and_four_processes_have_parts_of_recurrent_layers() {
    for (name, count) in [("qwen3_5-f32", 1), ("qwen3_5-q4-f32", 3)] {
        let folder = model_copy(name);
        std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
        let arguments = ["--prompt-ids", "1,9,30,77,12"];
        let alone = generate(folder.path(), &arguments);
        let start = |_| WorkerProcess::start(MLX, folder.path(), "0");
        let workers: Vec<WorkerProcess> = (0..count).map(start).collect();
        assert_eq!(with_workers(folder.path(), &workers, "tensor", &arguments), alone, "{name}");
    }
}

#[test]
fn two_processes_see_a_picture() {
    let folder = copied(&golden_folder().join("pictures/mistral3-f32"));
    std::fs::write(folder.path().join("key"), KEY).expect("it can be written");
    let picture = golden_folder().join("pictures/mistral3-f32/48x32.png");
    let arguments = ["-p", "What is this?", "--image", picture.to_str().expect("UTF-8")];
    let alone = generate(folder.path(), &arguments);
    assert_ne!(generate(folder.path(), &arguments[..2]), alone, "the picture is seen");
    for how in ["pipeline", "tensor"] {
        let workers = [WorkerProcess::start(MLX, folder.path(), "0")];
        assert_eq!(with_workers(folder.path(), &workers, how, &arguments), alone, "{how}");
    }
}
