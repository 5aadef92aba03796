//! Lists and reads the files of the project.

use std::{fs, path::Path, process::Command};

use anyhow::Result;

use crate::process;

/// A text file, with its path relative to the root of the workspace.
pub(super) struct SourceFile {
    pub(super) path: String,
    pub(super) text: String,
}

impl SourceFile {
    pub(super) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    pub(super) fn is_markdown(&self) -> bool {
        self.has_extension("md")
    }

    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|it| it == extension)
    }

    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Reads all files that git tracks or would track, except files that are not text.
pub(super) fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for path in list(root)? {
        // Git still lists a removed file before the commit.
        let Ok(bytes) = fs::read(root.join(&path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path, text });
        }
    }
    Ok(files)
}

fn list(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let Ok(text) = process::output(&mut git, "") else {
        // An unpacked archive, or a container in which git does not trust the folder.
        return walk(root);
    };
    let mut paths: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    // A path in a merge conflict is listed more than once.
    paths.dedup();
    Ok(paths)
}

/// Returns every file outside git's and Cargo's folders.
fn walk(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                paths.push(path.strip_prefix(root)?.display().to_string());
            } else if entry.file_name() != ".git" && path != root.join("target") {
                folders.push(path);
            }
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_and_a_walk_find_this_very_file() {
        let root = crate::workspace::root().expect("the tests run in the workspace");
        for paths in [list(&root), walk(&root)] {
            let paths = paths.expect("the folder can be read");
            assert!(paths.iter().any(|path| path == "xtask/src/tidy/files.rs"));
            assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
        }
    }
}
