//! Says from which commit the program is built, so that figures can name it.

use std::io::Write;
use std::process::Command;

fn main() -> std::io::Result<()> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // From an archive there is none.
    let commit = git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let mut out = std::io::stdout();
    writeln!(out, "cargo::rustc-env=MLX_COMMIT={commit}")?;
    // It moves with every commit.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).unwrap_or_else(|| "build.rs".to_owned());
    writeln!(out, "cargo::rerun-if-changed={log}")
}
