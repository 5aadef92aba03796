//! Chats over a pipe: output streams, conversations are saved, and errors do not end the chat.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{mlx, mlx_in, model, stderr, stdout};

#[test]
fn a_chat_works_over_a_pipe() {
    let folder = model("llama-f32");
    let work = tempfile::tempdir().expect("a temporary folder");
    let arguments = ["chat", "-m", &folder, "--temperature", "0", "--max-tokens", "5", "--ignore-eos"];
    let script = "/system Be brief.\nOne?\n\"\"\"\nTwo\nlines?\n\"\"\"\n/save chat.json\n/quit\nnever said\n";
    let output = mlx_in(work.path(), &arguments, script);
    assert!(output.status.success(), "{}", stderr(&output));
    let saved = std::fs::read_to_string(work.path().join("chat.json")).expect("it was saved");
    let messages: Vec<Value> = serde_json::from_str(&saved).expect("it is json");
    let contents: Vec<&str> =
        messages.iter().map(|message| message["content"].as_str().expect("text")).collect();
    assert_eq!(
        (contents.len(), contents[0], contents[1], contents[3]),
        (5, "Be brief.", "One?", "Two\nlines?")
    );
    // Standard output has only the answers, each followed by a line end.
    assert_eq!(stdout(&output), format!("{}\n{}\n", contents[2], contents[4]));
    let resumed = mlx_in(work.path(), &arguments, "/load chat.json\n/retry\n");
    assert_eq!(stdout(&resumed), format!("{}\n", contents[4]));
}

#[test]
fn changes_reach_the_file_and_no_failure_ends_the_chat() {
    let folder = model("llama-f32");
    let work = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(work.path().join("long.txt"), "word ".repeat(500)).expect("it can be written");
    let chat = ["chat", "-m", &folder, "--max-tokens", "2", "--ignore-eos", "--session", "kept.json"];
    let session_file = || std::fs::read_to_string(work.path().join("kept.json")).expect("it was kept");
    assert!(mlx_in(work.path(), &chat, "/system Be brief.\n/quit\n").status.success());
    assert!(session_file().contains("Be brief."), "{}", session_file());
    let output = mlx_in(work.path(), &[&chat[..], &["--prompt-file", "long.txt"]].concat(), "Hello?\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("messages") && session_file().contains("Hello?"), "{}", stderr(&output));
    std::fs::write(work.path().join("other.json"), "[{\"role\": \"user\", \"content\": \"Hm?\"}]")
        .expect("writes");
    assert!(mlx_in(work.path(), &chat, "/load other.json\n/quit\n").status.success());
    assert!(session_file().contains("Hm?") && !session_file().contains("Hello?"), "{}", session_file());
}

#[test]
fn errors_in_a_piped_chat_are_reported_and_the_chat_continues() {
    let folder = model("llama-f32");
    let arguments = ["chat", "-m", &folder, "--max-tokens", "2", "--ignore-eos"];
    let output = mlx(&arguments, "/frobnicate\n/load nothing.json\nHello?\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/frobnicate") && stderr(&output).contains("nothing.json"));
    assert!(!stdout(&output).is_empty());
}

#[test]
fn unusual_input_of_a_piped_chat_loses_no_messages() {
    let folder = model("llama-f32");
    let work = tempfile::tempdir().expect("a temporary folder");
    let arguments = ["chat", "-m", &folder, "--max-tokens", "2", "--ignore-eos"];
    let output =
        mlx_in(work.path(), &arguments, "\"\"\"\n    indented\n\"\"\"\n/save a.json\n\"\"\"\nno end\n");
    assert!(stderr(&output).contains("unterminated multi-line input"), "{}", stderr(&output));
    let saved = std::fs::read_to_string(work.path().join("a.json")).expect("it was saved");
    assert!(saved.contains("\"    indented\""), "{saved}");
}

/// The note appears if the end of an answer repeats itself.
#[test]
fn an_answer_that_ends_in_a_loop_has_a_note() {
    let folder = model("llama-f32");
    let base = ["chat", "-m", &folder, "--logit-bias", "40=100", "--ignore-eos", "--max-tokens"];
    let output = mlx(&[&base[..], &["160"]].concat(), "Hello\n");
    assert!(stderr(&output).contains("(the answer repeats itself for 159 tokens; "), "{}", stderr(&output));
    let output = mlx(&[&base[..], &["100"]].concat(), "Hello\n");
    assert!(!stderr(&output).contains("repeats itself"), "{}", stderr(&output));
}

#[test]
fn a_base_model_says_that_it_continues_the_text() {
    let copy = mlx_tests::model_copy("llama-f32");
    let config = copy.path().join("tokenizer_config.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("json");
    value.as_object_mut().expect("an object").remove("chat_template");
    std::fs::write(&config, value.to_string()).expect("it can be written");
    let folder = copy.path().to_str().expect("utf-8");
    let output = mlx(&["chat", "-m", folder, "--max-tokens", "2"], "Hello\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("a base model without a chat template"), "{}", stderr(&output));
    let output = mlx(&["generate", "-m", folder, "-p", "Hello", "--max-tokens", "2"], "");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_chat_that_outgrows_the_context_continues_and_reports_dropped_turns() {
    let folder = model("llama-f32");
    let arguments = ["chat", "-m", &folder, "--temperature", "0", "--max-tokens", "20", "--ignore-eos"];
    let script =
        format!("/context\n/system Be brief.\n{}/context\n", "Tell me more of the sea.\n".repeat(12));
    let output = mlx(&arguments, &script);
    let notes = stderr(&output);
    assert!(output.status.success(), "{notes}");
    assert!(notes.starts_with("0 of 256 tokens (0 %), 0 messages\n"), "{notes}");
    assert!(notes.contains("the model no longer sees the oldest"), "{notes}");
    assert!(notes.trim_end().ends_with("of them no longer seen"), "{notes}");
    let stopped = mlx(&[&arguments[..], &["--context-policy", "stop"]].concat(), &script);
    assert!(
        !stopped.status.success() && stderr(&stopped).contains("context holds 256"),
        "{}",
        stderr(&stopped)
    );
}

#[test]
fn without_a_model_the_guide_answers_and_introduces_itself() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let chat = |input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
        command.args(["chat"]).env_remove("MLX_MODEL").env_remove("XDG_CACHE_HOME").env("HOME", home.path());
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("the program starts");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
        child.wait_with_output().expect("the program ends")
    };
    let output = chat("how do I get a real model?\nhow do I limit the memory\n");
    let (contents, notes) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{notes}");
    assert!(contents.contains("mlx pull") && contents.contains("--memory-budget"), "{contents}");
    assert!(notes.contains("built-in model") && notes.contains("mlx pull"), "{notes}");
    // The guide is cached now; a damaged copy is replaced.
    let cache = home.path().join(".cache/mlx");
    let folder = cache.read_dir().expect("the cache is there").flatten().next().expect("the guide").path();
    std::fs::write(folder.join("config.json"), "{}").expect("it can be written");
    let again = chat("how do I get a real model?\nhow do I limit the memory\n");
    assert_eq!(stdout(&again), contents);
    let other = mlx(&["generate", "guide", "-p", "how do I limit the memory", "--temperature", "0"], "");
    assert!(stdout(&other).contains("--memory-budget"), "{}", stderr(&other));
}
