//! The metadata files of a Python wheel.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::zip::Entry;

/// The name of the package on PyPI.
pub(super) const NAME: &str = "mlx-local";
/// The name of the package's folder, and in file names.
pub(super) const MODULE: &str = "mlx_local";

const SUMMARY: &str = "Run open language models on your own machine: chat, scripts, and the APIs of OpenAI, Anthropic and Ollama";

/// PyPI rejects classifiers of licences next to `License-Expression`.
const CLASSIFIERS: [&str; 5] = [
    "Development Status :: 3 - Alpha",
    "Environment :: Console",
    "Intended Audience :: Developers",
    "Programming Language :: Rust",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
];

/// Python starts the program with these lines in `entry_points.txt`.
pub(super) const ENTRY_POINTS: &str = "[console_scripts]\nmlx = mlx_local:main\n";

/// Returns the text of `METADATA`. `licenses` are file names, and `readme` is the description in Markdown.
pub(super) fn metadata(
    version: &str,
    platform: &str,
    requirements: &[String],
    licenses: &[&str],
    readme: &str,
) -> String {
    let system = if platform.starts_with("macosx") { "MacOS" } else { "POSIX :: Linux" };
    let line = |name: &str, value: &str| format!("{name}: {value}\n");
    let mut text = [
        line("Metadata-Version", "2.4"),
        line("Name", NAME),
        line("Version", version),
        line("Summary", SUMMARY),
        line("License-Expression", "MIT OR Apache-2.0"),
    ]
    .concat();
    text.extend(licenses.iter().map(|name| line("License-File", name)));
    text.extend(CLASSIFIERS.map(|classifier| line("Classifier", classifier)));
    text.push_str(&line("Classifier", &format!("Operating System :: {system}")));
    // The minimum of MLX's packages.
    text.push_str(&line("Requires-Python", ">=3.10"));
    text.extend(requirements.iter().map(|requirement| line("Requires-Dist", requirement)));
    text.push_str(&line("Description-Content-Type", "text/markdown"));
    format!("{text}\n{readme}")
}

/// Returns the text of `WHEEL` for any Python 3 on this platform.
pub(super) fn wheel(version: &str, platform: &str) -> String {
    format!(
        "Wheel-Version: 1.0\nGenerator: xtask ({version})\nRoot-Is-Purelib: false\nTag: {}\n",
        tag(platform)
    )
}

/// Returns the compatibility tag of the wheel: it has no code for one version of Python.
pub(super) fn tag(platform: &str) -> String {
    format!("py3-none-{platform}")
}

/// Returns the text of `RECORD`, which lists all files with hash and size. `path` is its own path.
pub(super) fn record(entries: &[Entry], path: &str) -> String {
    let line = |entry: &Entry| {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&entry.content));
        format!("{},sha256={hash},{}\n", entry.path, entry.content.len())
    };
    entries.iter().map(line).chain([format!("{path},,\n")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_has_requirements_licenses_and_the_readme() {
        let requirements = ["mlx-metal==1.2".to_owned()];
        let text = metadata("0.1.0", "macosx_14_0_arm64", &requirements, &["LICENSE-MIT"], "# mlx\n");
        let (head, readme) = text.split_once("\n\n").expect("an empty line ends the fields");
        assert_eq!(readme, "# mlx\n");
        for line in [
            "Name: mlx-local",
            "Version: 0.1.0",
            "License-File: LICENSE-MIT",
            "Classifier: Operating System :: MacOS",
            "Requires-Dist: mlx-metal==1.2",
        ] {
            assert!(head.lines().any(|it| it == line), "{line}: {head}");
        }
        assert!(wheel("0.1.0", "macosx_14_0_arm64").ends_with("Tag: py3-none-macosx_14_0_arm64\n"));
    }

    #[test]
    fn the_record_has_a_hash_of_every_other_file() {
        let entry = Entry { path: "a".to_owned(), content: b"abc".to_vec(), is_program: false };
        // The SHA-256 of "abc" in its standard, in base64.
        assert_eq!(
            record(&[entry], "RECORD"),
            "a,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\nRECORD,,\n"
        );
    }
}
