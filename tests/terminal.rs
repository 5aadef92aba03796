//! An interactive chat in a pseudo-terminal, typed key by key.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Regex, Session};
use mlx_tests::{harmony, model_folder};

/// A chat with the tiny model in a terminal of its own.
fn chat(home: &Path, arguments: &[&str]) -> OsSession {
    let short = ["--max-tokens", "6", "--ignore-eos", "--temperature", "0"];
    chat_with(&model_folder("llama-f32"), home, &[&short, arguments].concat())
}

fn chat_with(model: &Path, home: &Path, arguments: &[&str]) -> OsSession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["chat", "-m"]).arg(model).args(arguments);
    command.env("HOME", home).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("XDG_STATE_HOME");
    command.env_remove("MLX_LOG").current_dir(home);
    let mut session = Session::spawn(command).expect("the program starts");
    // A busy machine takes its time to load a model.
    session.set_expect_timeout(Some(Duration::from_mins(1)));
    session.expect("is ready").expect("a greeting");
    session.expect("> ").expect("a prompt");
    session
}

/// Faster than any typist; keys that arrive within a millisecond before the prompt can be lost.
const PAUSE: Duration = Duration::from_millis(200);

/// Types a line and waits for the expected output.
fn type_line(session: &mut OsSession, line: &str, expected: &str) -> String {
    std::thread::sleep(PAUSE);
    session.send_line(line).expect("it can be typed");
    let found = session.expect(Regex(expected)).unwrap_or_else(|error| panic!("{line}: {expected}: {error}"));
    String::from_utf8_lossy(found.get(0).expect("a match")).into_owned()
}

fn quit(session: &mut OsSession) {
    std::thread::sleep(PAUSE);
    session.send_line("/quit").expect("it can be typed");
    session.expect(Eof).expect("the program ends");
}

#[test]
fn an_interactive_chat_answers_and_runs_commands() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "Hello", r"6 tokens, [0-9.]+ tok/s, context [0-9]+ %");
    type_line(&mut session, "/context", r"[0-9]+ of 256 tokens");
    type_line(&mut session, "/tokens", r" %.*\r\n.* %");
    type_line(&mut session, "/params top_k=40", "> ");
    type_line(&mut session, "/params", r"max_tokens=6 temperature=0 top_k=40");
    type_line(&mut session, "/params heat=1", "heat is not a parameter");
    type_line(&mut session, "/seed 7", "> ");
    type_line(&mut session, "/seed", "each answer uses the seed 7");
    type_line(&mut session, "/edit Good bye", r"tok/s");
    type_line(&mut session, "/undo", "removed: Good bye");
    type_line(&mut session, "/undo", "there is no message to remove");
    type_line(&mut session, "/model", "llama-f32");
    type_line(&mut session, "/model nowhere", "nowhere");
    quit(&mut session);
}

#[test]
fn a_conversation_in_a_file_continues() {
    let home = tempfile::tempdir().expect("a temporary folder");
    for turn in [2, 4] {
        let mut session = chat(home.path(), &["--session", "talk.json", "--plain"]);
        type_line(&mut session, "One more", "stopped at 6 tokens: max_tokens");
        type_line(&mut session, "/context", &format!("{turn} messages"));
        quit(&mut session);
    }
    let saved = std::fs::read_to_string(home.path().join("talk.json")).expect("it was kept");
    assert_eq!(saved.matches("One more").count(), 2);
}

#[test]
fn thoughts_are_folded_until_they_are_asked_for() {
    let (home, model) = (tempfile::tempdir().expect("a temporary folder"), harmony::model());
    let greedy = ["--temperature", "0", "--presence-penalty", harmony::PRESENCE_PENALTY];
    let mut session = chat_with(model.path(), home.path(), &greedy);
    let folded =
        type_line(&mut session, "Hi", r"Thinking… Hmm.*\r\x1b\[2K.*Thought for [0-9.]+ s.*\r\n.*Hello");
    assert!(!folded.contains("analysis") && !folded.contains("final"), "{folded:?}");
    type_line(&mut session, "/think", "thoughts are shown");
    type_line(&mut session, "/retry", r"Thinking….*\r\n.*Hmm.*\r\n.*Thought for [0-9.]+ s.*\r\n\r\nHello");
    type_line(&mut session, "/think high", "> ");
    type_line(&mut session, "/think no", "must be on, off");
    quit(&mut session);
}
