//! A Homebrew formula for the archives of a release.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The archive for both versions of macOS, made on a Mac, and the two that are made on Linux.
const MAC: &str = "aarch64-apple-darwin";
const MACOS_14: &str = "aarch64-apple-darwin-macos14";
const MACOS_26: &str = "aarch64-apple-darwin-macos26";
const LINUX_ARM: &str = "aarch64-unknown-linux-gnu";
const LINUX_INTEL: &str = "x86_64-unknown-linux-gnu";
const TARGETS: [&str; 5] = [MAC, MACOS_14, MACOS_26, LINUX_ARM, LINUX_INTEL];

/// Writes `mlx-cli.rb` for the archives in `dist` that have checksums, with `url` as their future location.
pub(super) fn write(dist: &Path, url: &str) -> Result<()> {
    let mut sums = Vec::new();
    for target in TARGETS {
        let path = dist.join(format!("mlx-{}-{target}.tar.gz.sha256", env!("CARGO_PKG_VERSION")));
        if path.exists() {
            let text = fs::read_to_string(&path)?;
            let sum = text.split(' ').next().with_context(|| format!("{} is empty", path.display()))?;
            sums.push((target, sum.to_owned()));
        }
    }
    fs::write(dist.join("mlx-cli.rb"), Formula { url: url.trim_end_matches('/'), sums }.text())?;
    Ok(())
}

/// The archives of a formula.
struct Formula<'a> {
    /// The folder of the archives.
    url: &'a str,
    /// The targets of the archives, with their checksums.
    sums: Vec<(&'static str, String)>,
}

impl Formula<'_> {
    fn text(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let page = self.repository().unwrap_or(self.url);
        let [livecheck, macos, linux] = [self.livecheck(), self.macos(), self.linux()];
        format!(
            r##"class MlxCli < Formula
  desc "Run open language models on your own machine"
  homepage "{page}"
  version "{version}"
  license any_of: ["MIT", "Apache-2.0"]
{livecheck}{macos}{linux}
  def install
    libexec.install Dir["*"]
    bin.write_exec_script libexec/"bin/mlx"
  end

  service do
    run [opt_bin/"mlx", "serve"]
    keep_alive true
    log_path var/"log/mlx.log"
    error_log_path var/"log/mlx.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/mlx --version")
    assert_match "mlx pull", shell_output("#{{bin}}/mlx ask --device cpu 'How do I download a model?'")
  end
end
"##
        )
    }

    /// The repository on GitHub, if the archives belong to one of its releases.
    fn repository(&self) -> Option<&str> {
        let (page, _) = self.url.split_once("/releases/download/")?;
        page.starts_with("https://github.com/").then_some(page)
    }

    fn livecheck(&self) -> String {
        let block =
            |page| format!("\n  livecheck do\n    url \"{page}\"\n    strategy :github_latest\n  end\n");
        self.repository().map(block).unwrap_or_default()
    }

    /// The lines that name an archive, indented by `depth` levels; `None` if there is no such archive.
    fn archive(&self, target: &str, depth: usize) -> Option<String> {
        let (_, sum) = self.sums.iter().find(|(other, _)| *other == target)?;
        let (version, space, url) = (env!("CARGO_PKG_VERSION"), "  ".repeat(depth), self.url);
        Some(format!("{space}url \"{url}/mlx-{version}-{target}.tar.gz\"\n{space}sha256 \"{sum}\"\n"))
    }

    /// The block for macOS. The archives for two versions replace the one that a Mac makes.
    fn macos(&self) -> String {
        let only = || [MAC, MACOS_14, MACOS_26].into_iter().find_map(|target| self.archive(target, 2));
        let both = self.archive(MACOS_14, 3).zip(self.archive(MACOS_26, 3));
        let both = both.map(|(older, newer)| {
            format!("    if MacOS.full_version < \"26.2\"\n{older}    else\n{newer}    end\n")
        });
        let Some(archives) = both.or_else(only) else { return String::new() };
        format!(
            "\n  on_macos do\n    depends_on arch: :arm64\n    depends_on macos: :sonoma\n\n{archives}  end\n"
        )
    }

    fn linux(&self) -> String {
        let block = |(name, target)| Some(format!("    on_{name} do\n{}    end\n", self.archive(target, 3)?));
        let blocks: String =
            [("arm", LINUX_ARM), ("intel", LINUX_INTEL)].into_iter().filter_map(block).collect();
        if blocks.is_empty() { blocks } else { format!("\n  on_linux do\n{blocks}  end\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(url: &str, targets: &[&'static str]) -> String {
        let sums = targets.iter().map(|target| (*target, format!("sum-{target}"))).collect();
        Formula { url, sums }.text()
    }

    #[test]
    fn each_archive_is_named_with_its_sum() {
        let all = text("https://example.org/files", &TARGETS);
        for target in [MACOS_14, MACOS_26, LINUX_ARM, LINUX_INTEL] {
            let name = format!("mlx-{}-{target}.tar.gz", env!("CARGO_PKG_VERSION"));
            let line = format!("url \"https://example.org/files/{name}\"");
            let (_, rest) = all.split_once(&line).expect("it is there");
            assert!(rest.trim_start().starts_with(&format!("sha256 \"sum-{target}\"")), "{all}");
        }
        assert!(!all.contains(&format!("{MAC}.tar.gz")), "{all}");
        let only = text("https://example.org/files", &[MAC]);
        assert!(only.contains(&format!("{MAC}.tar.gz")) && !only.contains("on_linux"), "{only}");
        for text in [all, only] {
            let count = |is: fn(&str) -> bool| text.lines().map(str::trim).filter(|line| is(line)).count();
            let opened = |line: &str| {
                line.ends_with(" do") || ["if ", "def ", "class "].iter().any(|word| line.starts_with(word))
            };
            assert_eq!(count(opened), count(|line| line == "end"), "{text}");
        }
    }

    #[test]
    fn new_versions_are_looked_for_on_github_alone() {
        let released = text("https://github.com/owner/name/releases/download/v1", &[MAC]);
        assert!(released.contains("homepage \"https://github.com/owner/name\"\n"), "{released}");
        assert!(released.contains("strategy :github_latest"), "{released}");
        assert!(!text("https://example.org/files", &[MAC]).contains("livecheck"));
    }
}
