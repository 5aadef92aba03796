//! Tests that the commands and flags in the guide's answers exist.

use std::path::Path;

use clap::Command;

use crate::args;

/// Flags of cargo and of `cargo xtask setup`, which answers also name alone.
const OTHER_FLAGS: [&str; 2] = ["--release", "--cuda"];

/// Returns the answers of the corpus, each with its file.
fn answers() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/guide/corpus");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name == "slots.txt" {
            continue;
        }
        for line in std::fs::read_to_string(&path).expect("a text").lines() {
            // `Q`, `H`, `K` and `after` have phrasings of questions.
            let answer =
                line.split_once(": ").filter(|(kind, _)| !matches!(*kind, "Q" | "H" | "K" | "after"));
            if let Some((_, text)) = answer.filter(|_| !line.starts_with('#')) {
                found.push((name.clone(), text.to_owned()));
            }
        }
    }
    assert!(found.len() > 500, "{} has {} answers", folder.display(), found.len());
    found
}

/// Returns true if the command or one of its subcommands has the flag.
fn has_flag(command: &Command, flag: &str) -> bool {
    let name = &flag[2..];
    let is_named = |arg: &clap::Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().any(is_named) || command.get_subcommands().any(|it| has_flag(it, flag))
}

/// Returns the words of a command line that are flags, without their values.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |ch: char| !ch.is_ascii_alphanumeric() && ch != '-';
    text.split(is_end).filter(|word| word.len() > 2 && word.starts_with("--"))
}

/// Returns the first fault of a command line: an unknown command, or a flag that its command does not have.
fn fault(program: &Command, line: &str) -> Option<String> {
    let (own, passed_on) = line.split_once(" -- ").unwrap_or((line, ""));
    let mut command = program;
    for word in own.split_whitespace().skip(1) {
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None if command.has_subcommands() && word.chars().all(|ch| ch.is_ascii_lowercase()) => {
                return Some(format!("there is no command {word:?}"));
            }
            None => break,
        }
    }
    let unknown = |within: &Command, flag: &&str| !has_flag(within, flag);
    let foreign = flags(own).find(|flag| unknown(command, flag));
    let foreign = foreign.or_else(|| flags(passed_on).find(|flag| unknown(program, flag)));
    foreign.map(|flag| format!("{} has no flag {flag}", command.get_name()))
}

#[test]
fn answers_name_only_commands_and_flags_that_exist() {
    let mut program = args::command();
    program.build();
    for (file, answer) in answers() {
        for code in answer.split('`').skip(1).step_by(2) {
            if code.starts_with("--") {
                let unknown =
                    flags(code).find(|flag| !has_flag(&program, flag) && !OTHER_FLAGS.contains(flag));
                assert_eq!(unknown, None, "{file}: {answer}");
            }
            for line in code.split(['|', '&']).map(str::trim).filter(|line| line.starts_with("mlx ")) {
                assert_eq!(fault(&program, line), None, "{file}: {answer}");
            }
        }
    }
    let faults =
        ["mlx chatt", "mlx chat --port 1", "mlx cache lost", "mlx service install -- --no-such-flag"];
    for line in faults {
        assert!(fault(&program, line).is_some(), "{line}");
    }
}
