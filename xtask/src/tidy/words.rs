//! Words that do not belong in Rust source, or only in some files of it.

use super::{code::find_word, files::SourceFile, violation::Violation};

// The words of the first two lists are written in halves, so that this file may name them.

/// Notes about unfinished work, in code and comments.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Code that is unfinished.
const UNFINISHED: [&str; 4] = [
    concat!("unimple", "mented!"),
    concat!("to", "do!"),
    concat!("#[ig", "nore"),
    concat!("allow(dead", "_code"),
];

const PRINTING: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];

/// Files and folders that may print: the terminal module, the last error of a program, and tools.
const MAY_PRINT: [&str; 6] = [
    "mlx-core/examples/",
    "mlx-cli/src/terminal.rs",
    "mlx-server/src/main.rs",
    "bench/src/main.rs",
    "tests/",
    "xtask/",
];

/// The files that call mlx-sys and libc.
const MAY_BE_UNSAFE: [&str; 5] = [
    "mlx-core/src/hangup.rs",
    "mlx-core/src/macos.rs",
    "mlx-core/src/mlx_sys.rs",
    "mlx-core/src/mlx_sys/",
    "mlx-core/src/sockets.rs",
];

pub(super) fn check(file: &SourceFile, code: &str) -> Vec<Violation> {
    let mut found = search(file, &file.text, &NOTES, "finish it now or describe it in an issue; no");
    found.extend(search(file, code, &UNFINISHED, "finish it or leave it out; no"));
    if !is_under(file, &MAY_PRINT) {
        found.extend(search(file, code, &PRINTING, "only the terminal file prints; no"));
    }
    if !is_under(file, &MAY_BE_UNSAFE) {
        found.extend(search(file, code, &["unsafe"], "only the files that call mlx-sys and libc may hold"));
    }
    found
}

fn search(file: &SourceFile, text: &str, words: &[&str], why: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let here = words.iter().filter(|word| find_word(line, word).next().is_some());
        found.extend(here.map(|word| Violation::new(file, number + 1, format!("{why} `{word}` here"))));
    }
    found
}

/// Returns true if the file is one of these, or is in one of these folders.
pub(super) fn is_under(file: &SourceFile, places: &[&str]) -> bool {
    places
        .iter()
        .any(|place| if place.ends_with('/') { file.path.starts_with(place) } else { file.path == *place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::code::without_comments_and_strings;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check(&file, &without_comments_and_strings(text)).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn notes_count_in_comments_too() {
        for note in NOTES {
            assert_eq!(lines("a.rs", &format!("x\n// {note}: y")), [2]);
            assert_eq!(lines("a.rs", &format!("// {note}S")), [0; 0]);
        }
    }

    #[test]
    fn unfinished_code_is_found_in_code_alone() {
        for word in UNFINISHED {
            assert_eq!(lines("a.rs", &format!("x\n{word}")), [2]);
            assert_eq!(lines("a.rs", &format!("// {word}\nlet x = \"{word}\";")), [0; 0]);
        }
    }

    #[test]
    fn only_some_files_print() {
        assert_eq!(lines("mlx-core/src/a.rs", "fn f() {\n    println!();\n}"), [2]);
        assert_eq!(lines("mlx-cli/src/chat/mod.rs", "eprint!();"), [1]);
        for path in ["mlx-cli/src/terminal.rs", "mlx-server/src/main.rs", "tests/a.rs", "xtask/src/main.rs"] {
            assert_eq!(lines(path, "println!();"), [0; 0]);
        }
    }

    #[test]
    fn few_files_are_unsafe() {
        assert_eq!(lines("mlx-core/src/array.rs", "unsafe { f() }"), [1]);
        assert_eq!(lines("mlx-core/src/array.rs", "#![forbid(unsafe_code)] // unsafe"), [0; 0]);
        for path in ["mlx-core/src/mlx_sys.rs", "mlx-core/src/mlx_sys/a.rs", "mlx-core/src/macos.rs"] {
            assert_eq!(lines(path, "unsafe { f() }"), [0; 0]);
        }
    }
}
