//! Tools in a chat: a command runs if the user allows it, the next prompt has its result, and saved conversations contain both.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use expectrl::session::OsSession;
use expectrl::{Expect, Regex, Session};
use mlx_tests::tide::model;
use mlx_tests::{model_folder, piped};
use serde_json::Value;

use crate::terminal::{PATIENCE, quit, type_line};

/// Returns a folder with a tools file. Its command also records that it ran.
fn work(command: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = format!(
        "[[tool]]\nname = \"tide\"\ndescription = \"Looks up a tide.\"\ncommand = {command}\nparameters = {{ place = \"Where.\" }}\n"
    );
    std::fs::write(folder.path().join("tools.toml"), text).expect("it can be written");
    folder
}

/// Both ways to pass an argument. No shell may interpret it.
const COMMANDS: [&str; 2] = [
    "'echo \"high tide at <$ARG_place>\"; echo x >> ran'",
    "[\"sh\", \"-c\", 'echo \"high tide at <$1>\"; echo x >> ran', \"sh\", \"{place}\"]",
];
const LATER: &str = "'echo $$ > ran; sleep 1000; echo \"high tide at <$ARG_place>\"'";

fn command(model: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["chat", "--temperature", "0", "--max-tokens", "40", "--tools", "tools.toml", "-m"]);
    command.arg(model).args(arguments).current_dir(folder).env_remove("MLX_LOG");
    command
}

fn runs(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("ran")).map_or(0, |text| text.lines().count())
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_allowed_command_runs_and_its_result_is_in_the_next_prompt() {
    let model = model();
    for line in COMMANDS {
        let work = work(line);
        let arguments = ["--allow-tool", "tide"];
        let output = piped(command(model.path(), work.path(), &arguments), "Tide?\n/save talk.json\n");
        let (answer, notes) = texts(&output);
        assert!(output.status.success(), "{notes}");
        assert_eq!((answer.as_str(), runs(work.path())), ("I have seen it.\n", 1), "{notes}");
        assert!(notes.contains("call tide {\"place\": \"Brest; touch broken\"}"), "{notes}");
        assert!(notes.contains("high tide at <Brest; touch broken>"), "{notes}");
        assert!(!work.path().join("broken").exists(), "a shell interpreted the argument");

        let saved = std::fs::read_to_string(work.path().join("talk.json")).expect("it was saved");
        let messages: Vec<Value> = serde_json::from_str(&saved).expect("JSON");
        let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
        let call = &messages[1]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "tide");
        assert_eq!(call["function"]["arguments"], "{\"place\": \"Brest; touch broken\"}");
        assert_eq!((&messages[1]["content"], &call["type"]), (&Value::Null, &"function".into()));
        assert_eq!(messages[2]["tool_call_id"], call["id"]);
        assert_eq!(messages[2]["content"], "high tide at <Brest; touch broken>\n");
        // A conversation with calls continues.
        let output = piped(command(model.path(), work.path(), &arguments), "/load talk.json\n/retry\n");
        assert_eq!((texts(&output).0.as_str(), runs(work.path())), ("I have seen it.\n", 2));
    }
}

/// A model chooses the arguments of commands, so no command gets the program's secrets.
#[test]
fn a_command_gets_the_environment_without_the_secrets_of_the_program() {
    let (model, work) = (model(), work("'env > seen; echo \"high tide at <$ARG_place>\"'"));
    let mut command = command(model.path(), work.path(), &["--allow-tool", "tide"]);
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "MLX_API_KEY"] {
        command.env(name, "a-secret");
    }
    command.env("OF_THE_USER", "anything");
    let output = piped(command, "Tide?\n");
    assert!(texts(&output).0.contains("I have seen it."), "{}", texts(&output).1);
    let seen = std::fs::read_to_string(work.path().join("seen")).expect("it ran");
    assert!(seen.contains("OF_THE_USER=anything") && !seen.contains("a-secret"), "{seen}");
}

#[test]
fn without_a_terminal_nothing_runs_that_was_not_allowed() {
    let (model, work) = (model(), work(COMMANDS[0]));
    let output = piped(command(model.path(), work.path(), &[]), "Tide?\n/save talk.json\n/tools\n");
    let (answer, notes) = texts(&output);
    assert_eq!((answer.as_str(), runs(work.path())), ("I know nothing.\n", 0), "{notes}");
    assert!(notes.contains("needs --allow-tool tide") && notes.contains("tide: Looks up a tide."), "{notes}");
    let saved = std::fs::read_to_string(work.path().join("talk.json")).expect("it was saved");
    assert!(saved.contains("The user declined this tool call."), "{saved}");
}

#[test]
fn calls_end_after_so_many_rounds() {
    let (model, work) = (model(), work(COMMANDS[0]));
    let arguments = ["--allow-tool", "tide", "--tool-rounds", "3"];
    let output = piped(command(model.path(), work.path(), &arguments), "Call again\n");
    let (answer, notes) = texts(&output);
    assert_eq!(runs(work.path()), 3, "{notes}");
    assert!(answer.contains("<tool_call>") && notes.contains("3 rounds"), "{answer} {notes}");
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let (model, work) = (model(), work(COMMANDS[0]));
    let (no_place, unknown) = (model_folder("llama-f32"), ["--allow-tool", "tides"]);
    for (folder, arguments, words) in [
        (no_place.as_path(), &[][..], &["--tools", "unknown format"][..]),
        (model.path(), &unknown, &["--allow-tool", "tides", "the tools are tide"]),
    ] {
        let output = piped(command(folder, work.path(), arguments), "Tide?\n");
        let notes = texts(&output).1;
        assert_eq!(output.status.code(), Some(2), "{notes}");
        assert!(words.iter().all(|word| notes.contains(word)), "{notes}");
    }
}

fn terminal(model: &Path, folder: &Path) -> OsSession {
    let mut command = command(model, folder, &[]);
    command.env("HOME", folder).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("XDG_STATE_HOME");
    let mut session = Session::spawn(command).expect("the program starts");
    session.set_expect_timeout(Some(PATIENCE));
    session.expect("is ready").expect("a greeting");
    session.expect("> ").expect("a prompt");
    session
}

#[test]
fn the_user_is_asked_for_each_call() {
    let (model, work) = (model(), work(COMMANDS[0]));
    let mut session = terminal(model.path(), work.path());
    let asked = r#"call tide \{"place": "Brest; touch broken"\}\r\nruns: echo .*\r\n.*run it\?"#;
    type_line(&mut session, "Tide?", asked);
    type_line(&mut session, "", "I know nothing");
    assert_eq!(runs(work.path()), 0, "an empty reply must not count as consent");
    type_line(&mut session, "/retry", asked);
    type_line(&mut session, "y", "high tide(.|\r\n)*I have seen it");
    assert_eq!(runs(work.path()), 1);
    type_line(&mut session, "/retry", asked);
    type_line(&mut session, "a", "I have seen it");
    type_line(&mut session, "/tools", "without confirmation");
    type_line(&mut session, "/retry", "I have seen it");
    assert_eq!(runs(work.path()), 3);
    quit(&mut session);
}

#[test]
fn an_interrupt_ends_a_command_and_not_the_chat() {
    let (model, work) = (model(), work(LATER));
    let mut session = terminal(model.path(), work.path());
    type_line(&mut session, "Tide?", r"run it\?");
    type_line(&mut session, "y", "");
    let begun = Instant::now();
    while runs(work.path()) == 0 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    session.send("\x03").expect("it can be typed");
    session.expect(Regex("stopped by the user(.|\r\n)*I know nothing")).expect("the chat goes on");
    type_line(&mut session, "/context", "tokens");
    quit(&mut session);
}
