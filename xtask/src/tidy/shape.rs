//! Limits on the length of files, and rules for their first line and their names.

use std::fmt;

use super::{files::SourceFile, violation::Violation};

const MAX_LINES: usize = 400;
/// The maximum length of nine out of ten files.
const USUAL: usize = 280;
/// Names that do not describe the contents.
const EMPTY_NAMES: [&str; 3] = ["utils.rs", "helpers.rs", "common.rs"];

pub(super) fn check(file: &SourceFile) -> Vec<Violation> {
    let mut found = Vec::new();
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        found.push(Violation::new(file, lines, format!("more than {MAX_LINES} lines; split the file")));
    }
    if !file.text.starts_with("//! ") {
        found.push(Violation::new(
            file,
            1,
            "the first line must describe the purpose of the file, after `//! `",
        ));
    }
    if EMPTY_NAMES.contains(&file.name()) {
        found.push(Violation::new(file, 0, "name the file after its contents"));
    }
    found
}

/// The lengths of all Rust files, shortest first.
pub(super) struct Lengths(Vec<(usize, String)>);

impl Lengths {
    pub(super) fn of(files: &[SourceFile]) -> Self {
        let rust = files.iter().filter(|file| file.is_rust());
        let mut lengths: Vec<_> = rust.map(|file| (file.text.lines().count(), file.path.clone())).collect();
        lengths.sort();
        Self(lengths)
    }

    /// Returns the smallest length that `percent` of the files do not exceed.
    fn at(&self, percent: usize) -> usize {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).map_or(0, |(lines, _)| *lines)
    }

    /// Checks the distribution of lengths.
    pub(super) fn violation(&self) -> Option<Violation> {
        let (_, path) = self.0.last()?;
        let rule = format!("9 of 10 files may have at most {USUAL} lines; split the longest");
        (self.at(90) > USUAL).then(|| Violation { path: path.clone(), line: 0, rule })
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (longest, path) = self.0.last().map_or((0, "none"), |(lines, path)| (*lines, path.as_str()));
        let (count, median, most) = (self.0.len(), self.at(50), self.at(90));
        write!(
            out,
            "{count} files of rust, median {median} lines, 9 of 10 up to {most}, longest {longest} ({path})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: usize) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: format!("//! What it is for.\n{}", "x\n".repeat(lines - 1)),
        }
    }

    #[test]
    fn length_has_a_limit() {
        assert!(check(&file("a.rs", 400)).is_empty());
        assert_eq!(check(&file("a.rs", 401))[0].line, 401);
        assert_eq!(check(&file("tests/a.rs", 401)).len(), 1);
    }

    #[test]
    fn the_first_line_says_what_for() {
        for text in ["", "// a\n", "#![x]\n//! a\n", "//!\n", "\n//! a\n"] {
            let file = SourceFile { path: "a.rs".to_owned(), text: text.to_owned() };
            assert_eq!(check(&file).len(), 1, "{text:?}");
        }
    }

    #[test]
    fn a_name_says_something() {
        assert_eq!(check(&file("a/utils.rs", 2)).len(), 1);
        assert!(check(&file("a/my_utils.rs", 2)).is_empty());
    }

    #[test]
    fn one_of_ten_may_be_long() {
        let files = |long: usize| -> Vec<SourceFile> {
            (0..20).map(|index| file("a.rs", if index < long { 281 } else { 280 })).collect()
        };
        assert_eq!(Lengths::of(&files(2)).violation(), None);
        assert!(Lengths::of(&files(3)).violation().is_some());
        assert_eq!(Lengths::of(&[]).violation(), None);
    }

    #[test]
    fn the_numbers_are_printed() {
        let files: Vec<SourceFile> = (1..=10).map(|lines| file(&format!("{lines}.rs"), lines)).collect();
        let text = "10 files of rust, median 5 lines, 9 of 10 up to 9, longest 10 (10.rs)";
        assert_eq!(Lengths::of(&files).to_string(), text);
    }
}
