//! Assembles a release: a folder with the program, its libraries and texts, and an archive of it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::program::{self, Folders};
use super::{archive, bill, files};

/// Files of the repository in a release.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The line of install.sh with the minimum version of macOS.
const OLDEST: &str = "oldest_macos=\n";

/// The contents of a release.
pub(super) struct Release<'a> {
    /// The name of the folder, and of the archive without its ending.
    pub(super) name: String,
    pub(super) target: &'a str,
    /// The built program.
    pub(super) program: PathBuf,
    /// Folders, each with relative paths of libraries in it.
    pub(super) libraries: Vec<(PathBuf, Vec<&'static str>)>,
    /// The folder with the unpacked packages of MLX and others.
    pub(super) packages: PathBuf,
    /// The minimum version of macOS, if it is fixed.
    pub(super) oldest_macos: Option<(u32, u32)>,
}

impl Release<'_> {
    /// Makes the folder in `dist`, lets `finish` change and check it, and returns the path of its archive.
    pub(super) fn make(
        &self,
        root: &Path,
        dist: &Path,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = dist.join(&self.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join("bin"))?;
        fs::copy(&self.program, folder.join("bin/mlx"))?;
        for (from, parts) in &self.libraries {
            files::copy(parts, from, &folder.join("lib"))?;
        }
        for text in TEXTS {
            fs::copy(root.join(text), folder.join(text))?;
        }
        bill::write(root, self.target, &self.packages, &folder)?;
        fs::write(folder.join("install.sh"), installer(self.oldest_macos))?;
        make_executable(&folder.join("install.sh"))?;
        finish(&folder)?;
        let folders = Folders::of(root)?;
        for file in files::files_of(&folder)? {
            if let Some(path) = folders.find(&fs::read(&file)?) {
                bail!("{} contains a path of this machine, below {}", file.display(), path.display());
            }
        }
        archive::pack(dist, &self.name, program::commit_time(root)?.parse()?)
    }
}

/// Returns the script that installs a release.
fn installer(oldest_macos: Option<(u32, u32)>) -> String {
    let script = include_str!("install.sh");
    match oldest_macos {
        Some((major, minor)) => script.replace(OLDEST, &format!("oldest_macos={major}.{minor}\n")),
        None => script.to_owned(),
    }
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_knows_the_minimum_version_of_macos() {
        assert!(installer(Some((26, 2))).contains("\noldest_macos=26.2\n"));
        assert!(installer(None).contains(&format!("\n{OLDEST}")));
    }
}
