//! What two processes have of a model in both ways of dividing it: they answer as one, with pictures too, and each reads its part.

use std::path::Path;
use std::process::{Command, Stdio};

use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::workers::wide_llama;
use mlx_tests::{copied, golden_folder};
use serde_json::json;

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

/// The same with a worker for the second part.
fn with_worker(folder: &Path, worker: &WorkerProcess, how: &str, arguments: &[&str]) -> String {
    let hosts = json!([{ "ips": ["127.0.0.1"] }, { "ips": [format!("127.0.0.1:{}", worker.port)] }]);
    std::fs::write(folder.join("hosts.json"), hosts.to_string()).expect("it can be written");
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
        let worker = WorkerProcess::start(MLX, folder.path(), "0");
        let before = worker.bytes_read();
        assert_eq!(with_worker(folder.path(), &worker, how, &arguments), alone, "{how}");
        if let (Some(before), Some(after)) = (before, worker.bytes_read()) {
            let read = after - before;
            // Pipeline's second part is a little larger: rank 0 has the embedding and the head.
            assert!(read > whole * 2 / 5 && read < whole * 3 / 5, "{how}: {read} of {whole} bytes");
        }
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
        let worker = WorkerProcess::start(MLX, folder.path(), "0");
        assert_eq!(with_worker(folder.path(), &worker, how, &arguments), alone, "{how}");
    }
}
