//! A Homebrew formula for the archives of a release.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The endings of archive names, with their conditions in a formula. The first is an archive that was made on a Mac.
const TARGETS: [(&str, &str); 5] = [
    (MAC, "on_macos do"),
    ("aarch64-apple-darwin-macos14", "on_macos do { if MacOS.full_version < \"26.2\""),
    ("aarch64-apple-darwin-macos26", "on_macos do { if MacOS.full_version >= \"26.2\""),
    ("aarch64-unknown-linux-gnu", "on_linux do { on_arm do"),
    ("x86_64-unknown-linux-gnu", "on_linux do { on_intel do"),
];
const MAC: &str = "aarch64-apple-darwin";

/// Writes `mlx-cli.rb` for the archives in `dist` that have checksums, with `url` as their future location.
pub(super) fn write(dist: &Path, url: &str) -> Result<()> {
    let mut sums = Vec::new();
    for (target, _) in TARGETS {
        let path = dist.join(format!("mlx-{}-{target}.tar.gz.sha256", env!("CARGO_PKG_VERSION")));
        if path.exists() {
            let text = fs::read_to_string(&path)?;
            let sum = text.split(' ').next().with_context(|| format!("{} is empty", path.display()))?;
            sums.push((target, sum.to_owned()));
        }
    }
    // Archives for two versions of macOS replace the one for this Mac.
    if sums.iter().any(|(target, _)| target.starts_with("aarch64-apple-darwin-")) {
        sums.retain(|(target, _)| *target != MAC);
    }
    fs::write(dist.join("mlx-cli.rb"), text(url, &sums))?;
    Ok(())
}

fn text(url: &str, sums: &[(&str, String)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let url = url.trim_end_matches('/');
    let place = |(target, sum): &(&str, String)| {
        let on = TARGETS.iter().find(|it| it.0 == *target).map_or("", |it| it.1);
        let blocks: Vec<&str> = on.split(" { ").collect();
        let indented = |(depth, line): (usize, String)| format!("{}{line}\n", "  ".repeat(depth));
        let open = blocks.iter().enumerate().map(|(depth, block)| (depth + 1, (*block).to_owned()));
        let inside = [format!("url \"{url}/mlx-{version}-{target}.tar.gz\""), format!("sha256 \"{sum}\"")];
        let inside = inside.map(|line| (blocks.len() + 1, line));
        let close = (1..=blocks.len()).rev().map(|depth| (depth, "end".to_owned()));
        open.chain(inside).chain(close).map(indented).collect::<String>()
    };
    let places: String = sums.iter().map(place).collect();
    format!(
        r##"class MlxCli < Formula
  desc "Run open language models on your own machine"
  homepage "{url}"
  version "{version}"
  license any_of: ["MIT", "Apache-2.0"]

{places}
  def install
    libexec.install Dir["*"]
    bin.write_exec_script libexec/"bin/mlx"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/mlx --version")
  end
end
"##
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_archive_is_named_with_its_sum() {
        let sums = TARGETS.map(|(target, _)| (target, format!("sum-{target}")));
        let text = text("https://example.org/files/", &sums);
        for (target, _) in TARGETS {
            let line = format!(
                "url \"https://example.org/files/mlx-{}-{target}.tar.gz\"",
                env!("CARGO_PKG_VERSION")
            );
            let (_, rest) = text.split_once(&line).expect("it is there");
            assert!(rest.trim_start().starts_with(&format!("sha256 \"sum-{target}\"")), "{text}");
        }
        let count =
            |word: &str| text.lines().filter(|line| line.trim() == word || line.ends_with(word)).count();
        let conditions = text.lines().filter(|line| line.trim().starts_with("if ")).count();
        assert_eq!(count(" do") + conditions + count("def install") + 1, count("end"), "{text}");
    }
}
