//! The rule that docs/proof.md refers to existing tests: each filter of a `cargo test` in it must match a file's path or a function's name.

use super::files::SourceFile;
use super::violation::Violation;

const PROOF: &str = "docs/proof.md";

pub(super) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let Some(proof) = files.iter().find(|file| file.path == PROOF) else { return Vec::new() };
    let names = names(files);
    let mut found = Vec::new();
    for (index, line) in proof.text.lines().enumerate() {
        for filter in filters(line).filter(|filter| !names.contains(filter)) {
            found.push(Violation::new(proof, index + 1, format!("no test or file is called `{filter}`")));
        }
    }
    found
}

/// Returns the paths and the function names of all Rust files, one per line.
fn names(files: &[SourceFile]) -> String {
    let rust = files.iter().filter(|file| file.is_rust());
    let functions = |file: &SourceFile| {
        let named = file
            .text
            .lines()
            .filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next().map(str::to_owned));
        named.collect::<Vec<_>>()
    };
    rust.flat_map(|file| [vec![file.path.clone()], functions(file)].concat()).collect::<Vec<_>>().join("\n")
}

/// Returns the test filters in the commands of a line. Each segment of a module path is a separate filter.
fn filters(line: &str) -> impl Iterator<Item = &str> {
    let commands = line.split('`').filter_map(|code| code.split_once("cargo test ").map(|(_, words)| words));
    commands.flat_map(|words| {
        let mut package = false;
        let kept = move |word: &&str| {
            let is_name = !word.starts_with('-') && !package;
            package = *word == "-p";
            is_name
        };
        words.split_whitespace().filter(kept).flat_map(|word| word.split("::"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_the_names_of_tests() {
        let line =
            "| a promise | `cargo test -p mlx-cli --test cli thoughts`, `A=1 cargo test cache::disk` |";
        assert_eq!(filters(line).collect::<Vec<_>>(), ["cli", "thoughts", "cache", "disk"]);
    }
}
