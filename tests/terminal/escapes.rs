//! Control sequences in the output of every command: complete on a terminal, absent in a pipe or a file.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use expectrl::{Eof, Expect, Session};
use mlx_tests::{harmony, model_folder, piped};
use regex::Regex;

/// Runs `mlx` in a terminal with one output redirected to a file. Returns the output of the terminal and the contents of the file.
fn shown_and_written(home: &Path, redirect: &str, arguments: &[&str]) -> (String, String) {
    let file = home.join("written");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("exec \"$@\" {redirect}\"$0\"")])
        .arg(&file)
        .arg(env!("CARGO_BIN_EXE_mlx"))
        .args(arguments);
    let mut session = Session::spawn(in_home(shell, home)).expect("the program starts");
    session.set_expect_timeout(Some(Duration::from_mins(2)));
    let shown = session.expect(Eof).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    let written = std::fs::read(&file).expect("the shell made it");
    (text(shown.as_bytes()), text(&written))
}

fn in_home(mut command: Command, home: &Path) -> Command {
    command.env("HOME", home).env("HF_HOME", home.join("hf")).env("TERM", "xterm").current_dir(home);
    for name in ["NO_COLOR", "MLX_LOG", "MLX_MODEL", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HF_HUB_CACHE"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails if a control sequence has lost its first character, or is truncated.
#[track_caller]
fn expect_whole(arguments: &[&str], shown: &str) {
    let csi = r"\x1b\[[0-?]*[ -/]*[@-~]";
    let whole = Regex::new(&format!(r"{csi}|\x1b[\]P_][^\x1b\x07]*(?:\x07|\x1b\\)")).expect("a pattern");
    let rest = whole.replace_all(shown, "");
    let remains = Regex::new(r"\x1b|\[\??[0-9]+(?:;[0-9]+)*[A-Za-z]|\]8;;").expect("a pattern");
    assert_eq!(remains.find(&rest).map(|found| found.as_str()), None, "{arguments:?}: {shown:?}");
}

#[test]
fn no_command_shows_the_remains_of_a_control_sequence() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (plain, thinking) = (model_folder("llama-f32"), harmony::model());
    let plain = plain.to_str().expect("utf-8");
    let thinking = thinking.path().to_str().expect("utf-8");
    let greedy = ["--temperature", "0", "--max-tokens", "24"];
    let with = |arguments: &[&'static str]| -> Vec<&str> {
        arguments
            .iter()
            .map(|word| match *word {
                "PLAIN" => plain,
                "THINKING" => thinking,
                word => word,
            })
            .collect()
    };
    for arguments in [
        &[][..],
        &["--help"],
        &["chat", "--help"],
        &["list"],
        &["rm", "org/nowhere"],
        &["default", "PLAIN"],
        &["default"],
        &["doctor"],
        &["doctor", "PLAIN", "--json"],
        &["inspect", "PLAIN"],
        &["convert", "PLAIN", "-o", "converted", "--dtype", "bf16"],
        &["score", "PLAIN", "-t", "The keeper counts the waves", "--format", "text"],
        &["score", "PLAIN", "-t", "The keeper counts the waves", "--format", "table"],
        &["bench", "PLAIN", "--prompt-lengths", "8", "--generate", "4", "--batch", "1", "--repeat", "1"],
        &["launch", "claude"],
        &["completions", "bash"],
        &["serve", "PLAIN", "--print-config"],
        &["ask", "how do I leave the chat"],
        &["-v", "generate", "PLAIN", "-p", "The", "--max-tokens", "4", "--temperature", "0"],
        &["generate", "PLAIN", "-p", "x", "--kv-bits", "3"],
    ] {
        expect_clean(home.path(), &with(arguments));
    }
    expect_clean(home.path(), &[&with(&["generate", "THINKING", "-p", "Hi"])[..], &greedy].concat());
    expect_clean(home.path(), &[&with(&["compare", "PLAIN", "THINKING", "Hello"])[..], &greedy].concat());
}

fn expect_clean(home: &Path, arguments: &[&str]) {
    for redirect in [">", "2>"] {
        std::fs::remove_dir_all(home.join("converted")).ok();
        let (shown, written) = shown_and_written(home, redirect, arguments);
        expect_whole(arguments, &shown);
        assert!(!written.contains('\u{1b}'), "{arguments:?} {redirect}: {written:?}");
        if arguments == ["doctor"] && redirect == "2>" {
            assert!(shown.contains("\u{1b}[32m✓\u{1b}[0m exactness"), "{shown:?}");
        }
    }
    std::fs::remove_dir_all(home.join("converted")).ok();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(arguments);
    let output = piped(in_home(command, home), "");
    for stream in [text(&output.stdout), text(&output.stderr)] {
        assert!(!stream.contains('\u{1b}'), "{arguments:?} in a pipe: {stream:?}");
    }
}

/// Notes of a chat go to standard error, which may be a file while answers go to a terminal.
#[test]
fn the_notes_of_a_chat_are_plain_in_a_file() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = model_folder("llama-f32");
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" chat \"$1\" --temperature 0 --max-tokens 6 --ignore-eos 2>notes"]);
    shell.arg(env!("CARGO_BIN_EXE_mlx")).arg(&model);
    let mut session = Session::spawn(in_home(shell, home.path())).expect("the program starts");
    session.set_expect_timeout(Some(super::PATIENCE));
    for line in ["Hello", "/tokens", "/why 2", "/help", "/params", "/quit"] {
        session.expect("> ").expect("a prompt");
        super::await_keys(&session);
        session.send_line(line).expect("it can be typed");
    }
    session.expect(Eof).expect("the program ends");
    let notes = std::fs::read_to_string(home.path().join("notes")).expect("the shell made it");
    assert!(
        notes.contains("tok/s") && notes.contains("least likely") && !notes.contains('\u{1b}'),
        "{notes:?}"
    );
}
