//! The allowed dependencies between parts of the project.

use super::{
    code::{find_word, is_word},
    files::SourceFile,
    violation::Violation,
    words::is_under,
};

/// The files that may use tensors. Most logic is tested without them.
const MAY_USE_MLX: [&str; 29] = [
    "mlx-core/src/adapter/fuse.rs",
    "mlx-core/src/array.rs",
    "mlx-core/src/distributed/group.rs",
    "mlx-core/src/distributed/pipeline.rs",
    "mlx-core/src/distributed/stage.rs",
    "mlx-core/src/distributed/tensor.rs",
    "mlx-core/src/backend.rs",
    "mlx-core/src/stream_errors.rs",
    "mlx-core/src/mlx_sys.rs",
    "mlx-core/src/mlx_sys/",
    "mlx-core/src/machine.rs",
    "mlx-core/src/quantization/",
    "mlx-core/src/weights.rs",
    "mlx-core/src/weights/adapted.rs",
    "mlx-core/src/weights/checkpoint.rs",
    "mlx-core/src/weights/packed.rs",
    "mlx-core/src/weights/read.rs",
    "mlx-core/src/weights/shard.rs",
    "mlx-core/src/weights/tensor.rs",
    "mlx-core/src/wired.rs",
    "mlx-core/src/model/",
    "mlx-core/src/cache/",
    "mlx-core/src/engine/run/device.rs",
    "mlx-core/src/engine/run/guess.rs",
    "mlx-core/src/engine/sequence/embedding.rs",
    "mlx-core/src/engine/sequence/prompt_score.rs",
    "bench/src/limits.rs",
    "bench/src/sampling.rs",
    "tests/",
];

/// Dependencies that a folder's manifest must not list. Cargo enforces that unlisted packages cannot be used.
const BANNED: [(&str, &[&str]); 9] = [
    ("mlx-core/", &["axum", "tokio", "clap", "ureq"]),
    ("crates/chat-format/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/chat-template/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/files/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/hub/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/audio/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/image/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/json/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "tokio", "clap", "ureq"]),
    ("crates/mcp/", &["mlx-core", "mlx-rs", "mlx-sys", "axum", "clap", "ureq"]),
];

/// Folders, and the modules of their crate that their files must not use.
const APART: [(&str, &[&str]); 2] =
    [("mlx-core/src/sampling/", &["model", "cache", "engine"]), ("mlx-core/src/model/", &["sampling"])];

/// Checks a Rust file, given without its comments and strings.
pub(super) fn check(file: &SourceFile, code: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    if !is_under(file, &MAY_USE_MLX) {
        let rule = "only the files on the list in xtask/src/tidy/dependencies.rs may use mlx_rs";
        found.extend(lines_with(code, "mlx_rs").map(|line| Violation::new(file, line, rule)));
    }
    for (folder, banned) in APART.iter().filter(|(folder, _)| file.path.starts_with(folder)) {
        for (line, name) in
            crate_modules(code).into_iter().filter(|(_, name)| banned.contains(&name.as_str()))
        {
            found.push(Violation::new(file, line, format!("{folder} must not use crate::{name}")));
        }
    }
    found
}

/// Checks the dependencies in a manifest.
pub(super) fn check_manifest(file: &SourceFile) -> Vec<Violation> {
    let Some((folder, banned)) = BANNED.iter().find(|(folder, _)| file.path == format!("{folder}Cargo.toml"))
    else {
        return Vec::new();
    };
    let name = |line: &str| {
        let key = line.trim_start().trim_start_matches(['[', '"']);
        let key = key.trim_start_matches("dependencies.").trim_start_matches("dev-dependencies.");
        key.split(|symbol: char| !is_word(symbol) && symbol != '-').next().unwrap_or_default().to_owned()
    };
    let lines = file.text.lines().enumerate().map(|(number, line)| (number + 1, name(line)));
    let named = lines.filter(|(_, name)| banned.contains(&name.as_str()));
    named
        .map(|(line, name)| Violation::new(file, line, format!("{folder} must not depend on {name}")))
        .collect()
}

fn lines_with<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let lines = code.lines().enumerate();
    lines.filter(move |(_, line)| find_word(line, word).next().is_some()).map(|(number, _)| number + 1)
}

/// Returns every module of the own crate in a path, also inside `use crate::{…}`, with its line.
fn crate_modules(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in find_word(code, "crate::") {
        let start = at + "crate::".len();
        let mut depth = 0_usize;
        let mut expected = true;
        let mut position = start;
        while let Some(symbol) = code[position..].chars().next() {
            let name: String = code[position..].chars().take_while(|symbol| is_word(*symbol)).collect();
            if expected && !name.is_empty() {
                let line = code[..position].matches('\n').count() + 1;
                found.push((line, name.clone()));
                expected = false;
            }
            match symbol {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 1 => expected = true,
                _ => {}
            }
            // Without braces, the first name is the only one.
            if depth == 0 && !expected {
                break;
            }
            position += if name.is_empty() { symbol.len_utf8() } else { name.len() };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        check(&file, text).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn only_listed_files_use_mlx() {
        assert_eq!(lines("mlx-core/src/session.rs", "\nuse mlx_rs::Array;"), [2]);
        assert_eq!(lines("mlx-cli/src/main.rs", "mlx_rs::eval();"), [1]);
        assert_eq!(lines("mlx-core/src/model/linear.rs", "use mlx_rs::Array;"), [0; 0]);
        assert_eq!(lines("mlx-core/src/array.rs", "use mlx_rs::Array;"), [0; 0]);
    }

    #[test]
    fn manifests_name_no_crate_above_them() {
        let manifest = |path: &str, text: &str| {
            check_manifest(&SourceFile { path: path.to_owned(), text: text.to_owned() }).len()
        };
        let text = "[dependencies]\ntokio.workspace = true\nclap = \"4\"\n[dependencies.axum]\n";
        assert_eq!(manifest("mlx-core/Cargo.toml", text), 3);
        assert_eq!(manifest("mlx-server/Cargo.toml", text), 0);
        assert_eq!(
            manifest("crates/chat-format/Cargo.toml", "[dev-dependencies]\nmlx-core.workspace = true\n"),
            1
        );
        assert_eq!(manifest("mlx-core/Cargo.toml", "[dependencies]\nserde.workspace = true\n# tokio\n"), 0);
    }

    #[test]
    fn sampling_and_model_stay_apart() {
        let sampling = "mlx-core/src/sampling/state.rs";
        assert_eq!(lines(sampling, "use crate::model::Model;\nfn f(c: crate::cache::Cache) {}"), [1, 2]);
        assert_eq!(lines(sampling, "use crate::{\n    error::{Error, model},\n    engine,\n};"), [3]);
        assert_eq!(lines(sampling, "use crate::{array, error::Error};\nlet model = 1;"), [0; 0]);
        assert_eq!(
            lines("mlx-core/src/model/mod.rs", "use crate::sampling::Sampler;\nuse crate::cache;"),
            [1]
        );
    }
}
