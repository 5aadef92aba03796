//! Questions to the guide: `mlx ask`, its note of doubt, and `?question` in a chat with another model.

use std::path::Path;
use std::process::{Command, Output};

use mlx_tests::piped;

use super::{model, stderr, stdout};

/// A mixture of words from the corpus that makes no sense; no answer to it can be right.
const MIXTURE: &str = "why does the tokenizer of the page rerank my adapter";

fn mlx_at(home: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx"));
    command
        .args(arguments)
        .current_dir(home)
        .env("HOME", home)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("MLX_MODEL");
    piped(command, input)
}

#[test]
fn the_guide_answers_a_question_or_says_that_it_is_not_sure() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let sure = mlx_at(home.path(), &["ask", "how do I leave the chat"], "");
    assert!(sure.status.success(), "{}", stderr(&sure));
    assert!(stdout(&sure).contains("/quit") && !stdout(&sure).contains("not sure"), "{}", stdout(&sure));
    let words = mlx_at(home.path(), &["ask", "how", "do", "I", "leave", "the", "chat"], "");
    let pipe = mlx_at(home.path(), &["ask"], "how do I leave the chat\n");
    assert_eq!([stdout(&words), stdout(&pipe)], [stdout(&sure), stdout(&sure)]);

    let unsure = mlx_at(home.path(), &["ask", MIXTURE], "");
    assert!(unsure.status.success() && stdout(&unsure).starts_with("I am not sure."), "{}", stdout(&unsure));
    let named: Vec<_> =
        stdout(&unsure).lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect();
    assert_eq!(named.len(), 2, "{}", stdout(&unsure));
    let unsure = stdout(&unsure);
    let (_, shown) = unsure.split_once("\n\nThe answer to the first: ").unwrap_or_else(|| panic!("{unsure}"));
    // Each of these questions has an answer. That of the first is shown.
    let answers = named.iter().map(|question| {
        let answer = mlx_at(home.path(), &["ask", question.trim()], "");
        assert!(answer.status.success() && !stdout(&answer).trim().is_empty(), "{}", stderr(&answer));
        stdout(&answer)
    });
    let answers: Vec<String> = answers.collect();
    assert!(answers[0].ends_with(shown), "{unsure}\n{}", answers[0]);
}

#[test]
fn a_missing_question_is_an_error_that_shows_how_to_ask() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let output = mlx_at(home.path(), &["ask"], " \n");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("mlx ask '"), "{}", stderr(&output));
}

#[test]
fn a_question_mark_asks_the_guide_and_leaves_the_conversation_alone() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let folder = model("llama-f32");
    let chat = ["chat", "-m", &folder, "--temperature", "0", "--max-tokens", "5", "--ignore-eos"];
    let with = mlx_at(home.path(), &chat, "One?\n?how do I leave the chat\nTwo?\n/save with.json\n");
    let without = mlx_at(home.path(), &chat, "One?\nTwo?\n/save without.json\n");
    assert!(stderr(&with).contains("/quit"), "{}", stderr(&with));
    assert_eq!(stdout(&with), stdout(&without));
    let saved = |name: &str| std::fs::read_to_string(home.path().join(name)).expect("it was saved");
    assert_eq!(saved("with.json"), saved("without.json"));
}

#[test]
fn a_chat_with_the_guide_doubts_what_is_likely_wrong() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let output = mlx_at(home.path(), &["chat"], &format!("how do I leave the chat\n{MIXTURE}\n"));
    assert_eq!(stderr(&output).matches("I am not sure").count(), 1, "{}", stderr(&output));
    assert!(!stdout(&output).contains("I am not sure"), "{}", stdout(&output));
}
