//! `cargo xtask tidy`: the rules of the house, as far as a machine can check them.

mod arrows;
mod code;
mod files;
mod paths;
mod shape;
mod words;

use anyhow::{Result, bail};

use crate::workspace;
use files::SourceFile;

/// A place where a rule is broken; line 0 stands for the whole file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    rule: String,
}

impl Violation {
    fn new(file: &SourceFile, line: usize, rule: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, rule: rule.into() }
    }
}

/// Reports every violation, then fails if there was one.
pub(crate) fn run() -> Result<()> {
    let files = files::read(&workspace::root()?)?;
    let mut found: Vec<Violation> = files.iter().flat_map(check).collect();
    let lengths = shape::Lengths::of(&files);
    println!("tidy: {lengths}");
    found.extend(lengths.violation());
    found.sort();
    for Violation { path, line, rule } in &found {
        eprintln!("{path}:{line}: {rule}");
    }
    if !found.is_empty() {
        bail!("{} house rules are broken; CONTRIBUTING.md says what they are for", found.len());
    }
    Ok(())
}

fn check(file: &SourceFile) -> Vec<Violation> {
    let mut found = paths::check(file);
    found.extend(arrows::check_manifest(file));
    if file.is_rust() {
        let code = code::without_comments_and_strings(&file.text);
        found.extend(shape::check(file));
        found.extend(words::check(file, &code));
        found.extend(arrows::check(file, &code));
    }
    found
}
