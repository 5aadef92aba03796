//! Puts the commit into optimized builds so that benchmark results can name it. Debug builds leave it out, since each commit would relink them.

use std::io::Write;
use std::process::Command;

fn main() -> std::io::Result<()> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_optimized = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let (commit, watched) = if is_optimized {
        // A source archive has no commit. The HEAD log changes with every commit.
        let commit = git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
        (commit, git(&["rev-parse", "--git-path", "logs/HEAD"]))
    } else {
        ("debug build".to_owned(), None)
    };
    let mut out = std::io::stdout();
    writeln!(out, "cargo::rustc-env=MLX_COMMIT={commit}")?;
    writeln!(out, "cargo::rerun-if-changed={}", watched.as_deref().unwrap_or("build.rs"))
}
