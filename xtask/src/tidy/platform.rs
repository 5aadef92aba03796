//! The rules that only the file of the backend queries the platform, and that no test returns early on a GPU. Code for one system must be
//! listed together with its check.

use super::{code::find_word, files::SourceFile, violation::Violation, words::is_under};

/// The file that creates the backend; all others receive it as a value.
const MAY_ASK: [&str; 1] = ["mlx-core/src/backend.rs"];

/// The query. Written in halves, so that this file may contain it.
const QUESTION: &str = concat!("on_", "gpu");

pub(super) fn check(file: &SourceFile, code: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let asks = find_word(line, QUESTION).any(|at| line[at + QUESTION.len()..].starts_with('('));
        if asks && !is_under(file, &MAY_ASK) {
            found.push(Violation::new(
                file,
                number + 1,
                "take the backend as a value instead of querying the platform",
            ));
        }
        if file.path.contains("tests") && skips(line, lines.get(number + 1)) {
            found.push(Violation::new(file, number + 1, "a test must not pass on a GPU by returning early"));
        }
    }
    found
}

/// The configuration predicate for the target system.
const SYSTEM: &str = concat!("target", "_os");

/// The page with a table of the files that use it.
const LISTED: &str = "docs/on-a-mac.md";

/// Reports files that query the system but are not in the table, and files in the table that do not query it.
pub(super) fn check_table(files: &[SourceFile]) -> Vec<Violation> {
    let Some(page) = files.iter().find(|file| file.path == LISTED) else { return Vec::new() };
    let asks = |file: &&SourceFile| file.is_rust() && find_word(&file.text, SYSTEM).next().is_some();
    let asking: Vec<&SourceFile> = files.iter().filter(asks).collect();
    let is_listed = |path: &str| page.text.contains(&format!("| `{path}` |"));
    let unlisted = asking.iter().filter(|file| !is_listed(&file.path));
    let mut found: Vec<Violation> = unlisted
        .map(|file| {
            Violation::new(file, 1, format!("{LISTED} must list this file and the check of its {SYSTEM}"))
        })
        .collect();
    for (index, line) in page.text.lines().enumerate() {
        let path = line.strip_prefix("| `").and_then(|rest| rest.split('`').next());
        let stale = |path: &&str| path.contains('/') && !asking.iter().any(|file| file.path == *path);
        if let Some(path) = path.filter(stale) {
            found.push(Violation::new(page, index + 1, format!("{path} has no {SYSTEM}")));
        }
    }
    found
}

/// Returns true if a condition about a GPU leads directly to a `return`.
fn skips(line: &str, next: Option<&&str>) -> bool {
    let condition = line.trim_start();
    let Some((condition, then)) = condition.strip_prefix("if ").and_then(|rest| rest.split_once('{')) else {
        return false;
    };
    let first =
        if then.trim().is_empty() { next.map_or("", |next| next.trim_start()) } else { then.trim_start() };
    condition.to_lowercase().contains("gpu")
        && (first.starts_with("return;") || first.starts_with("return }"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check(&file, text).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn the_platform_is_asked_for_in_one_place() {
        let asks = format!("x\nif array::{QUESTION}()? {{}}");
        assert_eq!(lines("mlx-core/src/model/moe.rs", &asks), [2]);
        assert_eq!(lines(MAY_ASK[0], &asks), [0; 0]);
        assert_eq!(lines("mlx-core/src/model/moe.rs", &format!("let {QUESTION} = 1;")), [0; 0]);
    }

    #[test]
    fn code_of_one_system_is_listed() {
        let file = |path: &str, text: String| SourceFile { path: path.to_owned(), text };
        let asks = format!("if cfg!({SYSTEM} = \"macos\") {{}}");
        let page = |rows: &str| file(LISTED, rows.to_owned());
        let violations = |rows: &str| {
            let files = [file("a/a.rs", asks.clone()), file("a/b.rs", String::new()), page(rows)];
            check_table(&files).into_iter().map(|found| found.path).collect::<Vec<_>>()
        };
        assert_eq!(violations("| `a/a.rs` | a test |"), [""; 0]);
        assert_eq!(violations("nothing"), ["a/a.rs"]);
        assert_eq!(violations("| `a/a.rs` | a test |\n| `a/b.rs` | a test |"), [LISTED]);
    }

    #[test]
    fn a_test_does_not_return_on_a_gpu() {
        assert_eq!(lines("tests/a.rs", "fn f() {\n    if is_gpu() {\n        return;\n    }\n}"), [2]);
        assert_eq!(lines("mlx-core/src/a/tests.rs", "if backend.gpu { return; }"), [1]);
        assert_eq!(lines("tests/a.rs", "if is_gpu() {\n    check();\n    return;\n}"), [0; 0]);
        assert_eq!(lines("tests/a.rs", "if is_cpu() { return; }"), [0; 0]);
    }
}
