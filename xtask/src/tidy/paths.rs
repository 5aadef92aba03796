//! The rule that no file contains an absolute path of one machine.

use super::{files::SourceFile, violation::Violation};

/// Prefixes of such paths. Written in halves, so that this file may contain them.
const STARTS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/t", "mp/"),
    concat!("/wo", "rk/"),
];

/// A file that Cargo writes.
const EXEMPT: &str = "Cargo.lock";

pub(super) fn check(file: &SourceFile) -> Vec<Violation> {
    if file.name() == EXEMPT {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let here = STARTS.iter().filter(|start| has_path(line, start));
        found.extend(here.map(|start| {
            Violation::new(
                file,
                number + 1,
                format!("a path under {start} exists only on one machine; write a relative one"),
            )
        }));
    }
    found
}

/// Returns true if an absolute path begins with `start`. `a/home/b` is relative, and without a name after it, `start` is only a folder.
fn has_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + start.len()..].chars().next();
        let absolute = !before.is_some_and(|symbol| symbol.is_alphanumeric() || "._-~})>$".contains(symbol));
        absolute && after.is_some_and(|symbol| symbol.is_alphanumeric() || "._".contains(symbol))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaks(path: &str, text: &str) -> bool {
        !check(&SourceFile { path: path.to_owned(), text: text.to_owned() }).is_empty()
    }

    #[test]
    fn an_absolute_path_is_found() {
        for start in STARTS {
            assert!(breaks("a.md", &format!("see {start}x/y")), "{start}");
            assert!(breaks("a.toml", &format!("path = \"{start}x\"")), "{start}");
            assert!(breaks("a.sh", &format!("file://{start}x")), "{start}");
        }
    }

    #[test]
    fn relative_paths_and_bare_folders_are_not() {
        for start in STARTS {
            assert!(!breaks("a.md", &format!("see docs{start}x and ..{start}x")), "{start}");
            assert!(!breaks("a.md", &format!("the folder {start} itself")), "{start}");
            assert!(!breaks("Cargo.lock", &format!("{start}x")), "{start}");
        }
    }
}
