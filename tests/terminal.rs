//! An interactive chat in a pseudo-terminal, typed key by key.

mod commands;
mod escapes;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Regex, Session};
use mlx_tests::{golden_folder, harmony, model_folder};
use rustix::termios::{LocalModes, tcgetattr};

/// The time limit for loading a model on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Starts a chat with the tiny model in a new terminal.
fn chat(home: &Path, arguments: &[&str]) -> OsSession {
    let short = ["--max-tokens", "6", "--ignore-eos", "--temperature", "0"];
    chat_with(&model_folder("llama-f32"), home, &[&short, arguments].concat())
}

fn chat_with(model: &Path, home: &Path, arguments: &[&str]) -> OsSession {
    chat_in(&[], model, home, arguments)
}

/// Starts a chat in a plain terminal with these additional variables.
fn chat_in(variables: &[(&str, &str)], model: &Path, home: &Path, arguments: &[&str]) -> OsSession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command.args(["chat", "-m"]).arg(model).args(arguments);
    command.env("HOME", home).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("XDG_STATE_HOME");
    command.env_remove("MLX_LOG").current_dir(home);
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env_remove("SSH_CONNECTION");
    command.env_remove("TERM_PROGRAM").env_remove("LC_TERMINAL").envs(variables.iter().copied());
    let mut session = Session::spawn(command).expect("the program starts");
    session.set_expect_timeout(Some(PATIENCE));
    session.expect("is ready").expect("a greeting");
    session.expect("> ").expect("a prompt");
    session
}

/// Waits until the chat reads keys, which is when its line editor takes over Ctrl-C. Keys sent just before that can be lost.
fn await_keys(session: &OsSession) {
    let terminal = session.get_process().get_raw_handle().expect("a terminal");
    let begun = Instant::now();
    while tcgetattr(&terminal).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ISIG)) {
        assert!(begun.elapsed() < PATIENCE, "the chat reads no keys");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Types a line once the chat reads input, and waits for the expected output.
pub(crate) fn type_line(session: &mut OsSession, line: &str, expected: &str) -> String {
    await_keys(session);
    session.send_line(line).expect("it can be typed");
    let found = session.expect(Regex(expected)).unwrap_or_else(|error| panic!("{line}: {expected}: {error}"));
    String::from_utf8_lossy(found.get(0).expect("a match")).into_owned()
}

pub(crate) fn quit(session: &mut OsSession) {
    await_keys(session);
    session.send_line("/quit").expect("it can be typed");
    session.expect(Eof).expect("the program ends");
}

#[test]
fn an_interactive_chat_answers_and_runs_commands() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "/edit", "there is no message to change");
    type_line(&mut session, "Hello", r"6 tokens, [0-9.]+ tok/s, context [0-9]+ of 256");
    type_line(&mut session, "/context", r"[0-9]+ of 256 tokens");
    type_line(&mut session, "/tokens", r"least likely:\r\n *[1-6] +[0-9.]+ %");
    type_line(&mut session, "/why 2", r" \* +[0-9.]+ %[^%]*\r\n 1 ");
    type_line(&mut session, "/why 9", "the last answer has 6 tokens");
    type_line(&mut session, "/params top_k=40", "max_tokens=6 temperature=0 top_k=40");
    let sources = r"max_tokens=6 +flag\r\ntemperature=0 +flag\r\ntop_k=40 +session\r\noff: typical_p";
    type_line(&mut session, "/params", sources);
    type_line(&mut session, "/params temperature=default", "max_tokens=6 top_k=40");
    type_line(
        &mut session,
        "/params",
        r"temperature=0.8 +default\r\ntop_k=40 +session\r\nmin_p=0.05 +default",
    );
    type_line(&mut session, "/params temperature=0", "max_tokens=6 temperature=0 top_k=40");
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
fn an_answer_is_repeated_to_the_bit_and_branched_from_a_token() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &["--exact"]);
    type_line(&mut session, "Hello", r"tok/s, context");
    type_line(&mut session, "/retry", "identical: 6 tokens, bit for bit");
    type_line(&mut session, "/branch 3", r"6 tokens|[0-9]+ tokens, [0-9.]+ tok/s");
    type_line(&mut session, "/context", "2 messages");
    type_line(&mut session, "/branch 40", "the last answer has 6 tokens");
    type_line(&mut session, "/branch 2 9", "token 2 has [0-9] alternatives");
    quit(&mut session);
}

#[test]
fn lines_typed_during_an_answer_are_the_next_messages() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    session.send("First\nSecond\nThird\n/context\n").expect("it can be typed");
    let found = session.expect(Regex("6 messages")).expect("three messages and their answers");
    let shown = String::from_utf8_lossy(found.before()).into_owned();
    assert_eq!(shown.matches("tok/s, context").count(), 3, "{shown:?}");
    // Each line is shown once, after its prompt, and not in the answer that was being written.
    for line in ["Second", "Third"] {
        assert!(!shown.lines().any(|it| it.contains(line) && !it.contains("> ")), "{line}: {shown:?}");
    }
    quit(&mut session);
}

#[test]
fn a_text_of_several_lines_is_one_message_and_one_entry_of_the_history() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "\"\"\"one\ntwo\"\"\"", "tok/s, context");
    type_line(&mut session, "/context", "2 messages");
    let history = home.path().join(".local/state/mlx/history");
    let kept = std::fs::read_to_string(history).expect("written at each line");
    assert!(kept.contains("\"\"\"one\\ntwo\"\"\""), "{kept:?}");
    // Recalls the entry before the last one, and adds a line with Alt-Enter.
    session.send("\x1b[A\x1b[A").expect("it can be typed");
    session.send_line("").expect("it can be typed");
    session.expect("tok/s, context").expect("an answer");
    type_line(&mut session, "/context", "4 messages");
    session.send("three\x1b\rfour").expect("it can be typed");
    session.send_line("").expect("it can be typed");
    session.expect("tok/s, context").expect("an answer");
    type_line(&mut session, "/context", "6 messages");
    quit(&mut session);
}

#[test]
fn tab_completes_and_ctrl_c_says_how_to_leave() {
    let home = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(home.path().join("notes.md"), "Some words.").expect("it can be written");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "/para\t top_k=7", "max_tokens=6 temperature=0 top_k=7");
    type_line(&mut session, "\x03", "press Ctrl-D or type /quit to leave");
    type_line(&mut session, "what is in @not\t", "attached notes.md, [0-9]+ tokens");
    session.expect("tok/s, context").expect("an answer");
    type_line(&mut session, "what is in @none.md", "@none.md is not a file here");
    session.expect("tok/s, context").expect("an answer");
    type_line(&mut session, "/seed 42", "each answer uses the seed 42");
    type_line(&mut session, "/system Be brief.", "system prompt set");
    quit(&mut session);
}

#[test]
fn a_full_context_has_figures_too() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session =
        chat_with(&model_folder("llama-f32"), home.path(), &["--ignore-eos", "--temperature", "0"]);
    type_line(&mut session, "Hello", "the context of 256 tokens is full");
    // The turn fills the context, so the next message evicts all of it, and its size would say nothing.
    session.expect(Regex(r"[0-9]+ tokens, [0-9.]+ tok/s[^,]*\r\n")).expect("figures");
    type_line(&mut session, "/context", r"0 of 256 tokens \(0 %\), 2 messages, 2 of them no longer seen");
    quit(&mut session);
}

#[test]
fn an_answer_that_is_stopped_says_so() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let options = ["--ignore-eos", "--temperature", "0", "--context-policy", "slide"];
    let mut session = chat_with(&model_folder("llama-f32"), home.path(), &options);
    // The line is read, and the answer has begun.
    type_line(&mut session, "Go on for ever", r"\x1b\[\?2004l\r\n.");
    session.send("\x03").expect("it can be typed");
    session.expect("(stopped)").expect("the answer ends");
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

/// Returns the standard output of `mlx`, in a terminal and in a pipe.
fn both_ways(arguments: &[&str]) -> (String, String) {
    let mut shell = Command::new("sh");
    // A progress bar would also write control sequences.
    shell.args(["-c", "exec \"$@\" 2>/dev/null", "sh", env!("CARGO_BIN_EXE_mlx")]).args(arguments);
    shell.env("TERM", "xterm").env("NO_COLOR", "1").env_remove("MLX_LOG");
    let mut session = Session::spawn(shell).expect("the program starts");
    session.set_expect_timeout(Some(PATIENCE));
    let shown = session.expect(Eof).expect("the program ends");
    let mut piped = Command::new(env!("CARGO_BIN_EXE_mlx"));
    piped.args(arguments);
    let piped = mlx_tests::piped(piped, "").stdout;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(shown.as_bytes()), text(&piped))
}

#[test]
fn a_models_words_are_no_commands_for_a_terminal() {
    let model = model_folder("llama-spm-f32");
    let model = model.to_str().expect("text");
    // Token 30 is ESC.
    let generate = ["generate", "-m", model, "--raw", "-p", "the", "--max-tokens", "3", "--temperature", "0"];
    let escape = [&generate[..], &["--logit-bias", "30=100"]].concat();
    let (shown, piped) = both_ways(&escape);
    assert_eq!((shown.trim_end(), piped.as_str()), ("", "\x1b\x1b\x1b\n"));
    let text = "the \u{1b}]0;title\u{7} \u{9b}2J\u{7f}\rwaves";
    for format in ["text", "table", "json"] {
        let (shown, piped) = both_ways(&["score", "-m", model, "-t", text, "--format", format]);
        let obeyed = shown.replace("\r\n", "\n").chars().find(|it| it.is_control() && *it != '\n');
        assert_eq!(obeyed, None, "{format}: {shown:?}");
        assert!(shown.contains("perplexity"), "{shown:?}");
        assert_eq!(format == "text", piped.contains('\u{1b}'), "{format}: {piped:?}");
    }
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
    type_line(&mut session, "/think high", "thinking is high");
    type_line(&mut session, "/think 50", "thoughts end after 50 tokens");
    type_line(&mut session, "/think no", "must be on, off");
    quit(&mut session);
}

#[test]
fn a_picture_that_is_dropped_is_attached_and_shown_as_the_terminal_can() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = golden_folder().join("pictures/mistral3-f32");
    let dropped = home.path().join("a picture.png");
    std::fs::copy(model.join("200x90.png"), &dropped).expect("it can be copied");
    let line = format!("{}  What is this?", dropped.display().to_string().replace(' ', "\\ "));
    let attached = "attached [^\r\n]*a picture\\.png, a picture\r\n";
    let short = ["--max-tokens", "4", "--temperature", "0"];
    let query = r"\x1b_Gi=31,[^\x1b]*\x1b\\\x1b\[c";
    for (variable, answer, shown) in [
        (None, "\x1b_Gi=31;OK\x1b\\\x1b[?62;4c", r"\x1b_Ga=T,f=100,q=2,m=1;iVBOR[^\x1b]*\x1b\\\x1b_Gm=[01];"),
        (None, "\x1b[?62;4c", "\x1bP0;1;0q\"1;1;200;90#0;2;0;0;0"),
        (Some(("LC_TERMINAL", "iTerm2")), "", r"\x1b\]1337;File=inline=1;size=[0-9]+:iVBOR"),
    ] {
        let mut session = chat_in(variable.as_slice(), &model, home.path(), &short);
        type_line(&mut session, &line, attached);
        if !answer.is_empty() {
            session.expect(Regex(query)).expect("the terminal is asked");
            session.send(answer).expect("it can be answered");
        }
        session.expect(Regex(shown)).unwrap_or_else(|error| panic!("{shown}: {error}"));
        let found = session.expect("tok/s, context").expect("an answer");
        let rest = String::from_utf8_lossy(found.before()).into_owned();
        assert!(!rest.contains("[?62") && !rest.contains("31;OK"), "the answer is not shown: {rest:?}");
        // The terminal is queried once, and its reply is not treated as input.
        type_line(&mut session, &line, attached);
        let found = session.expect("tok/s, context").expect("an answer");
        assert!(!String::from_utf8_lossy(found.before()).contains("\x1b[c"));
        type_line(&mut session, "/context", "4 messages");
        quit(&mut session);
    }
    // Without control sequences, or on a terminal without pictures.
    for plain in [true, false] {
        let more: &[&str] = if plain { &["--plain", "--verbose"] } else { &[] };
        let mut session = chat_with(&model, home.path(), &[&short, more].concat());
        type_line(&mut session, &line, attached);
        if !plain {
            session.expect(Regex(query)).expect("the terminal is asked");
            session.send("\x1b[?6c").expect("it can be answered");
        }
        let found = session.expect(Regex("tok/s, (context|answer)")).expect("an answer");
        let shown = String::from_utf8_lossy(found.before()).into_owned();
        assert!(
            !shown.contains("\x1b_G") && !shown.contains("iVBOR") && !shown.contains("\x1bP"),
            "{shown:?}"
        );
        quit(&mut session);
    }
}
