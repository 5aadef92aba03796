//! `cargo xtask fuzz`: runs libFuzzer on the targets in `fuzz/`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::{process, setup, workspace};

/// The targets, and the file names of fixtures for their initial corpus.
const TARGETS: [(&str, &[&str]); 12] = [
    ("audio", &["tone.wav", "tone.flac", "tone.mp3", "tone.m4a", "tone.ogg", "tone.opus", "tone.webm"]),
    ("cache", &[]),
    ("config", &["config.json"]),
    ("constraint", &[]),
    ("gguf", &["gemma3.gguf", "llama.gguf", "qwen35.gguf"]),
    ("http", &[]),
    ("image", &[]),
    ("npz", &[]),
    ("parser", &[]),
    ("safetensors", &[]),
    ("template", &["chat_template.jinja", "chatml.jinja", "blocks.jinja"]),
    ("tokenizer", &["tokenizer.json"]),
];

/// The time limit of an input and the memory limit of a run.
const LIMITS: [&str; 3] = ["-timeout=10", "-report_slow_units=2", "-rss_limit_mb=1024"];

/// Runs one target, or all of them one after the other, for `seconds` each.
pub(crate) fn run(target: Option<&str>, seconds: u64) -> Result<()> {
    let chosen: Vec<_> =
        TARGETS.iter().filter(|(name, _)| target.is_none_or(|chosen| chosen == *name)).collect();
    if chosen.is_empty() {
        bail!("there is no such target; the targets are {}", TARGETS.map(|(name, _)| name).join(", "));
    }
    check_tools()?;
    setup::run()?;
    let root = workspace::root()?;
    for (name, fixtures) in chosen {
        let (seeds, corpus) =
            (root.join("target/fuzz-seeds").join(name), root.join("fuzz/corpus").join(name));
        fs::create_dir_all(&seeds)?;
        fs::create_dir_all(&corpus)?;
        collect(&root.join("tests/golden"), fixtures, &seeds)?;
        // Without a sanitizer, because the product is safe Rust except for a few files of calls. A sanitizer would also report memory that
        // MLX's library, which is not instrumented, allocates itself.
        let mut command = Command::new("cargo");
        command.args(["+nightly", "fuzz", "run", "--sanitizer", "none", name]).args([&corpus, &seeds]);
        let own = root.join("fuzz/seeds").join(name);
        command.args(own.is_dir().then_some(own)).arg("--").args(LIMITS);
        command.arg(format!("-max_total_time={seconds}"));
        let words = root.join("fuzz").join(format!("{name}.dict"));
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        ensure!(command.current_dir(&root).status()?.success(), "{name} failed on an input; see above");
    }
    Ok(())
}

fn check_tools() -> Result<()> {
    let cargo = |arguments: &[&str]| process::succeeds(Command::new("cargo").args(arguments));
    ensure!(
        cargo(&["+nightly", "--version"]),
        "fuzzing needs a nightly compiler: `rustup toolchain install nightly`"
    );
    ensure!(cargo(&["fuzz", "--version"]), "fuzzing needs cargo-fuzz: `cargo install cargo-fuzz`");
    Ok(())
}

/// Copies all files with these names below `folder`.
fn collect(folder: &Path, names: &[&str], seeds: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, names, seeds)?;
        } else if let Some(name) =
            path.file_name().and_then(|name| name.to_str()).filter(|name| names.contains(name))
        {
            // Two folders of a name may be in different groups.
            let [group, place] = [folder.parent(), Some(folder)]
                .map(|it| it.and_then(Path::file_name).unwrap_or_default().to_string_lossy());
            fs::copy(&path, seeds.join(format!("{group}-{place}-{name}")))?;
        }
    }
    Ok(())
}
