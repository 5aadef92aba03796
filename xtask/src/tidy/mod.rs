//! `cargo xtask tidy`: checks the house rules.

mod charts;
mod code;
mod dependencies;
mod english;
mod files;
mod import_cycles;
mod imports;
mod paths;
mod platform;
mod proof;
mod shape;
mod violation;
mod words;

use anyhow::{Result, bail};

use crate::workspace;
use english::English;
use files::SourceFile;
use violation::Violation;

/// Reports every violation, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let files = files::read(&workspace::root()?)?;
    let mut found: Vec<Violation> = files.iter().flat_map(check).collect();
    let lengths = shape::Lengths::of(&files);
    println!("tidy: {lengths}");
    found.extend(lengths.violation());
    let cycles = import_cycles::find(&files);
    println!("tidy: {} import cycles", cycles.len());
    found.extend(import_cycles::violations(&cycles));
    found.extend(proof::check(&files));
    found.extend(platform::check_table(&files));
    found.extend(charts::check(&files));
    report_english(&files);
    found.sort();
    for Violation { path, line, rule } in &found {
        eprintln!("{path}:{line}: {rule}");
    }
    if !found.is_empty() {
        bail!("{} house rules are broken; CONTRIBUTING.md explains them", found.len());
    }
    Ok(())
}

/// Prints the rates of odd English, and a warning if they are high.
fn report_english(files: &[SourceFile]) {
    for (kind, english) in
        [("comments", English::of_comments(files)), ("Markdown", English::of_markdown(files))]
    {
        let advice = if english.is_plain() { "" } else { "; CONTRIBUTING.md says how to write" };
        println!("tidy: {kind}: {english}{advice}");
    }
}

fn check(file: &SourceFile) -> Vec<Violation> {
    let mut found = paths::check(file);
    found.extend(dependencies::check_manifest(file));
    if file.is_rust() {
        let code = code::without_comments_and_strings(&file.text);
        found.extend(shape::check(file));
        found.extend(words::check(file, &code));
        found.extend(dependencies::check(file, &code));
        found.extend(platform::check(file, &code));
    }
    found
}
