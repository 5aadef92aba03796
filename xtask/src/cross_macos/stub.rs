//! Reads and rewrites stubs: text files (`.tbd`, version 4) that list the symbols of a system library. A linker reads them instead of the
//! library.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The target in our stubs.
const ARM: &str = "arm64-macos";
/// The keys of lists with symbols.
const LISTS: [&str; 3] = ["symbols:", "weak-symbols:", "thread-local-symbols:"];

/// The symbols of system libraries by install name.
pub(crate) type Symbols = BTreeMap<String, BTreeSet<String>>;

/// Adds the symbols in a stub for Apple silicon. The parts of an umbrella library count as symbols of the first library in the file.
pub(crate) fn read(stub: &str, into: &mut Symbols) {
    let mut umbrella = None;
    for document in stub.split("--- !tapi-tbd").skip(1) {
        let Some(name) = install_name(document) else { continue };
        let name = match umbrella.clone() {
            Some(first) if document.contains("\nparent-umbrella:") => first,
            _ => umbrella.insert(name).clone(),
        };
        into.entry(name).or_default().extend(exported(document));
    }
}

fn install_name(document: &str) -> Option<String> {
    let value = document.lines().find_map(|line| line.strip_prefix("install-name:"))?;
    Some(value.trim().trim_matches('\'').to_owned())
}

/// Returns the symbols in all lists for Apple silicon.
fn exported(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_for_arm = false;
    let mut rest = document;
    while let Some((key, list, after)) = next_list(rest) {
        if key == "targets:" {
            is_for_arm = list.contains("arm64");
        } else if LISTS.contains(&key) && is_for_arm {
            found.extend(list.split(',').map(|name| name.trim().trim_matches('\'').to_owned()));
        }
        rest = after;
    }
    found
}

/// Returns the next list in brackets: its key, its contents and the text after it.
fn next_list(text: &str) -> Option<(&str, &str, &str)> {
    let (before, after) = text.split_once('[')?;
    let (list, after) = after.split_once(']')?;
    Some((before.split_whitespace().next_back().unwrap_or_default(), list, after))
}

/// Replaces each list of targets with Apple silicon by a single target. LLVM's linker rejects the newest kinds of processors.
pub(super) fn only_arm(stub: &str) -> String {
    let mut text = String::new();
    let mut rest = stub;
    while let Some((key, list, after)) = next_list(rest) {
        let before = rest.split('[').next().unwrap_or_default();
        let list =
            if key == "targets:" && list.contains("arm64") { format!(" {ARM} ") } else { list.to_owned() };
        write!(text, "{before}[{list}]").expect("a string takes any text");
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const UMBRELLA: &str = "--- !tapi-tbd
tbd-version:     4
targets:         [ x86_64-macos, arm64e-macos,
                   arm64e.x1-macos ]
install-name:    '/usr/lib/libWhole.B.dylib'
exports:
  - targets:     [ x86_64-macos ]
    symbols:     [ _old ]
  - targets:     [ x86_64-macos, arm64e-macos ]
    symbols:     [ _one, '_two$NEW' ]
    weak-symbols: [ _three ]
--- !tapi-tbd
tbd-version:     4
targets:         [ arm64-macos ]
install-name:    '/usr/lib/libPart.dylib'
parent-umbrella:
  - targets:     [ arm64-macos ]
    umbrella:    Whole
exports:
  - targets:     [ arm64-macos ]
    symbols:     [ _part ]
...
";

    fn symbols(stub: &str) -> Symbols {
        let mut symbols = Symbols::new();
        read(stub, &mut symbols);
        symbols
    }

    #[test]
    fn an_umbrella_has_the_symbols_of_its_parts_for_apple_silicon() {
        let names = ["_one", "_part", "_three", "_two$NEW"].map(str::to_owned);
        let expected = Symbols::from([("/usr/lib/libWhole.B.dylib".to_owned(), names.into())]);
        assert_eq!(symbols(UMBRELLA), expected);
    }

    #[test]
    fn each_library_of_a_file_without_an_umbrella_is_separate() {
        let two = UMBRELLA.replace("parent-umbrella", "comment");
        assert_eq!(
            symbols(&two).into_keys().collect::<Vec<_>>(),
            ["/usr/lib/libPart.dylib", "/usr/lib/libWhole.B.dylib"]
        );
    }

    #[test]
    fn only_the_targets_change() {
        let text = only_arm(UMBRELLA);
        assert_eq!(symbols(&text), symbols(UMBRELLA));
        assert!(!text.contains("arm64e") && text.contains("[ x86_64-macos ]"), "{text}");
        assert!(text.starts_with("--- !tapi-tbd") && text.ends_with("[ _part ]\n...\n"), "{text}");
        assert_eq!(only_arm("no list"), "no list");
    }
}
