//! MCP servers in a chat: their tools run like commands, after a yes, and a bad server never ends the chat.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use expectrl::{Expect, Session};
use mlx_tests::mcp::{assert_server_ends, folder};
use mlx_tests::tide::model;
use mlx_tests::{model_folder, piped};
use rustix::process::{Pid, Signal, kill_process};

use crate::terminal::{PATIENCE, quit, type_line};

const GOOD: &[(&str, &[&str])] =
    &[("test", &["--tools", "tide", "--record", "calls", "--pid", "pid", "--stubborn"])];

fn command(model: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["chat", "--temperature", "0", "--max-tokens", "40", "--mcp", "mcp.json", "-m"]);
    command.arg(model).args(arguments).current_dir(folder).env_remove("MLX_LOG");
    command.env("HOME", folder).env_remove("XDG_STATE_HOME");
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn calls(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("calls")).unwrap_or_default()
}

#[test]
fn an_allowed_tool_of_a_server_is_called_and_its_result_is_in_the_next_prompt() {
    let (model, work) = (model(), folder(GOOD));
    let arguments = ["--allow-tool", "tide"];
    let output = piped(command(model.path(), work.path(), &arguments), "Tide?\n/mcp\n/tools\n");
    let (answer, notes) = texts(&output);
    assert!(output.status.success(), "{notes}");
    assert_eq!(answer, "I have seen it.\n", "{notes}");
    assert!(calls(work.path()).contains(r#"{"place": "Brest; touch broken"}"#), "{}", calls(work.path()));
    assert!(
        notes.contains("test: 1 tool (python3 ") && notes.contains("\n  tide: Looks up a tide."),
        "{notes}"
    );
    assert!(notes.contains("\ntide: Looks up a tide. (runs without confirmation)"), "{notes}");
    assert_server_ends(work.path());
}

#[test]
fn a_model_without_tools_is_refused_by_the_flag() {
    let work = folder(GOOD);
    let output = piped(command(&model_folder("llama-f32"), work.path(), &[]), "Tide?\n");
    let notes = texts(&output).1;
    assert!(notes.contains("--mcp cannot be used: the model's chat template"), "{notes}");
}

#[test]
fn without_a_yes_nothing_is_called() {
    let (model, work) = (model(), folder(GOOD));
    let output = piped(command(model.path(), work.path(), &[]), "Tide?\n");
    let (answer, notes) = texts(&output);
    assert_eq!((answer.as_str(), calls(work.path()).as_str()), ("I know nothing.\n", ""), "{notes}");
    assert!(notes.contains("needs --allow-tool tide"), "{notes}");

    let mut command = command(model.path(), work.path(), &[]);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    let mut session = Session::spawn(command).expect("the program starts");
    session.set_expect_timeout(Some(PATIENCE));
    session.expect("is ready").expect("a greeting");
    session.expect("> ").expect("a prompt");
    let asked = r#"call tide of the MCP server test \{"place":"Brest; touch broken"\}\r\n.*run it\?"#;
    type_line(&mut session, "Tide?", asked);
    type_line(&mut session, "n", "I know nothing");
    assert_eq!(calls(work.path()), "");
    type_line(&mut session, "/retry", asked);
    type_line(&mut session, "y", "I have seen it");
    assert_eq!(calls(work.path()).lines().count(), 1);
    quit(&mut session);
}

#[test]
fn servers_that_cannot_start_are_noted_and_names_do_not_collide() {
    let model = model();
    let work = folder(&[
        ("dead", &["--start", "die"]),
        ("slow", &["--start", "hang"]),
        ("test", &["--tools", "tide"]),
    ]);
    let tools = "[[tool]]\nname = \"tide\"\ndescription = \"A command.\"\ncommand = \"echo nothing\"\nparameters = { place = \"Where.\" }\n";
    std::fs::write(work.path().join("tools.toml"), tools).expect("it can be written");
    let arguments =
        ["--tools", "tools.toml", "--mcp-timeout", "5", "--allow-tool", "test__tide", "--allow-tool", "dig"];
    let output = piped(command(model.path(), work.path(), &arguments), "/tools\n/mcp\nTide?\n");
    let (answer, notes) = texts(&output);
    assert_eq!(answer, "I know nothing.\n", "{notes}");
    for line in [
        "the MCP server \"dead\" failed: it ended (exit status: 1); the last line of its standard error is \"no such setting\"",
        "the MCP server \"slow\" failed: it did not list its tools within 5 seconds",
        "--allow-tool dig has no effect, because an MCP server failed",
        "tide: A command.\n",
        "test__tide: Looks up a tide. (runs without confirmation)",
    ] {
        assert!(notes.contains(line), "{line}: {notes}");
    }
    let work = folder(GOOD);
    for (arguments, word) in
        [(&["--mcp", "none.json"][..], "none.json"), (&["--allow-tool", "tides"], "tides")]
    {
        let output = piped(
            command(model.path(), work.path(), &[&["--mcp-timeout", "1"], arguments].concat()),
            "Tide?\n",
        );
        let notes = texts(&output).1;
        assert!(output.status.code() == Some(2) && notes.contains(word), "{notes}");
    }
}

/// A killed program, ended if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_server_ends_when_the_program_is_killed() {
    let (model, work) = (model(), folder(GOOD));
    let mut command = command(model.path(), work.path(), &[]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn().expect("it starts"));
    let begun = Instant::now();
    while std::fs::read_to_string(work.path().join("pid")).unwrap_or_default().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the server does not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = Pid::from_child(&running.0);
    kill_process(pid, Signal::KILL).expect("it runs");
    assert_server_ends(work.path());
}
