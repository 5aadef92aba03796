//! Commands that other programs have too, and chats that are continued.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{chat, quit, type_line};

fn kept(home: &Path) -> Vec<PathBuf> {
    let folder = home.join(".local/state/mlx/chats");
    let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

#[test]
fn an_answer_that_was_cut_is_continued() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "/continue", "there is no answer to continue");
    type_line(&mut session, "Hello", "6 tokens");
    type_line(&mut session, "/why 7", "the last answer has 6 tokens");
    type_line(&mut session, "/continue", "max_tokens");
    type_line(&mut session, "/why 13", "the last answer has 12 tokens");
    quit(&mut session);
}

#[test]
fn commands_of_other_programs_work() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "/copy", "there is no answer to copy");
    type_line(&mut session, "/set parameter top_k 40", "top_k=40");
    type_line(&mut session, "/set min_p=0.1", "min_p=0.1");
    type_line(&mut session, "/show", r"top_k=40 +session");
    type_line(&mut session, "/set system Be terse.", "system prompt set");
    type_line(&mut session, "/show system", r"Be terse\.");
    type_line(&mut session, "/models", r"llama-f32  \(in use\)\r\n(.|\r\n)*guide");
    type_line(&mut session, "Hello", "6 tokens");
    // The terminal gets the text in base64.
    type_line(&mut session, "/copy", r"\x1b\]52;c;[A-Za-z0-9+/=]+\x07(.|\r\n)*copied [0-9]+ characters");
    type_line(&mut session, "/copy code", "no block of code");
    type_line(&mut session, "/regenerate", "identical");
    quit(&mut session);
}

#[test]
fn a_chat_is_kept_and_continued() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "First of all", "6 tokens");
    type_line(&mut session, "/new", "cleared");
    for message in ["One", "Two", "Three"] {
        type_line(&mut session, message, "6 tokens");
    }
    quit(&mut session);
    let files = kept(home.path());
    assert_eq!(files.len(), 2, "each conversation is kept: {files:?}");
    let mode = |path: &Path| path.metadata().expect("it exists").permissions().mode() & 0o777;
    assert!(files.iter().all(|file| mode(file) == 0o600));
    assert_eq!(mode(files[0].parent().expect("a folder")), 0o700);

    let mut session = chat(home.path(), &["--continue"]);
    type_line(&mut session, "/context", "6 messages");
    quit(&mut session);
    assert_eq!(kept(home.path()).len(), 2);

    let mut session = chat(home.path(), &["--no-history"]);
    type_line(&mut session, "Secret", "6 tokens");
    quit(&mut session);
    assert_eq!(kept(home.path()).len(), 2);
    let history =
        std::fs::read_to_string(home.path().join(".local/state/mlx/history")).expect("of the other chats");
    assert!(history.contains("Three") && !history.contains("Secret"), "{history}");
}

#[test]
fn a_resumed_chat_shows_its_last_two_turns() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let early = Command::new(env!("CARGO_BIN_EXE_mlx"))
        .args(["chat", "--continue", "-m", "no/such/model"])
        .env("HOME", home.path())
        .env_remove("XDG_STATE_HOME")
        .output()
        .expect("it runs");
    let notes = String::from_utf8_lossy(&early.stderr);
    assert!(notes.contains("finds no chat"), "no model is needed to see it: {notes}");
    let talk: Vec<serde_json::Value> = ["One", "Two", "Three"]
        .iter()
        .flat_map(|text| [("user", format!("{text}?")), ("assistant", format!("{text}!"))])
        .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
        .collect();
    let file = home.path().join("talk.json");
    std::fs::write(&file, serde_json::to_string(&talk).expect("JSON")).expect("it can be written");
    let mut session = chat(home.path(), &[]);
    type_line(&mut session, "Hello", "6 tokens");
    let shown = type_line(&mut session, "/load talk.json", r"> Two\?\r\nTwo!\r\n> Three\?\r\nThree!");
    assert!(!shown.contains("One"), "{shown}");
    quit(&mut session);
    let texts: Vec<String> =
        kept(home.path()).iter().map(|file| std::fs::read_to_string(file).expect("a chat")).collect();
    assert!(texts.len() == 2 && texts.iter().any(|text| text.contains("Hello")), "both are kept: {texts:?}");
}
