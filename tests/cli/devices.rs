//! The choice of the device, by flag or by variable.

use std::process::{Command, Output};

use mlx_core::backend::DEVICE;
use mlx_tests::piped;
use mlx_tests::skipped::possible;

use super::{json, mlx, model, stderr, stdout};

/// One command of each kind that computes.
fn commands() -> Vec<Vec<String>> {
    let folder = model("llama-f32");
    let commands: [&[&str]; 12] = [
        &["chat", "-m", &folder],
        &["generate", "-m", &folder, "--raw", "-p", "The", "--max-tokens", "1"],
        &["score", "-m", &folder, "-t", "The waves"],
        &[
            "bench",
            "-m",
            &folder,
            "--generate",
            "2",
            "--prompt-lengths",
            "4",
            "--batch",
            "1",
            "--repeat",
            "1",
        ],
        &["cache", "save", "-m", &folder, "--prompt-cache-dir", "/nowhere/cache", "-p", "The"],
        &["inspect", "-m", &folder],
        &["convert", "-m", &folder, "-o", "/nowhere/converted"],
        &["doctor"],
        &["ask", "what is this?"],
        &["compare", &folder, &folder, "The"],
        &["worker", "-m", &folder, "--port", "0", "--worker-key-file", "/nowhere/key"],
        &["serve", "-m", &folder, "--port", "0"],
    ];
    commands.map(|words| words.iter().map(|word| (*word).to_owned()).collect()).to_vec()
}

fn with_variable(arguments: &[&str], device: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments).env(DEVICE, device);
    piped(command, "")
}

#[test]
fn every_command_that_computes_takes_a_device() {
    for command in commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let refused = mlx(&[&words, &["--device", "tpu"][..]].concat(), "");
        let error = stderr(&refused);
        assert!(error.contains("'tpu' for '--device <DEVICE>': it must be cpu or gpu"), "{words:?}: {error}");
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
    }
    let refused = with_variable(&["list"], "tpu");
    assert!(
        stderr(&refused).contains("MLX_DEVICE is \"tpu\"; it must be cpu or gpu"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_gpu_that_is_not_there_is_refused() {
    // The variable may select the CPU on a machine where tests must not use the GPU.
    let is_there = std::env::var_os(DEVICE).is_some() || json(&["doctor", "--json"], "")["device"] != "cpu";
    let needs = "a machine without a GPU, and MLX_DEVICE unset";
    if !possible(!is_there, needs) {
        return;
    }
    for command in commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        for refused in [mlx(&[&words, &["--device", "gpu"][..]].concat(), ""), with_variable(&words, "gpu")] {
            let error = stderr(&refused);
            assert!(error.contains("--device is gpu, but MLX finds no GPU here"), "{words:?}: {error}");
            assert_ne!(refused.status.code(), Some(0), "{words:?}");
        }
    }
    let refused = with_variable(&["list"], "gpu");
    assert!(
        stderr(&refused).contains("MLX_DEVICE is gpu, but MLX finds no GPU here"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn reports_name_the_device_that_was_chosen() {
    let found = json(&["doctor", "--json", "--device", "cpu"], "");
    assert_eq!(found["device"], "cpu");
    let slow = found["slow"].to_string();
    assert!(slow.contains("--device or MLX_DEVICE"), "{slow}");
    let found = with_variable(&["inspect", "-m", &model("llama-f32")], "cpu");
    assert!(stdout(&found).contains("on the cpu"), "{}", stdout(&found));
    // The flag takes precedence over the variable.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["doctor", "--device", "cpu"]).env(DEVICE, "gpu");
    let text = stdout(&piped(command, ""));
    assert!(text.contains("device     cpu") && text.contains("everything runs on the CPU"), "{text}");
}
