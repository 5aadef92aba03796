//! Shell completion of commands, flags and local models.

use std::ffi::OsStr;
use std::fs::DirEntry;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use mlx_guide as guide;
use mlx_hub::has_gguf_extension;

use crate::model_choice;

/// The environment variable with which a completion script requests candidates.
pub(crate) const VARIABLE: &str = "MLX_COMPLETE";

/// Answers a completion request of a shell and exits; otherwise does nothing.
pub(crate) fn answer_shell(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Completes a model name: local models, the guide, folders and GGUF files.
pub(crate) fn model_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(models)
}

/// Returns the names of the local models.
pub(crate) fn local_models() -> Vec<String> {
    let mut names = model_choice::local_names();
    names.push(guide::NAME.to_owned());
    names
}

fn models(start: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = start.to_str() else { return Vec::new() };
    let mut candidates: Vec<_> = local_models()
        .into_iter()
        .filter(|name| name.starts_with(start))
        .map(CompletionCandidate::new)
        .collect();
    candidates.extend(paths(start));
    candidates
}

/// Returns the folders and GGUF files that complete a path.
fn paths(start: &str) -> Vec<CompletionCandidate> {
    let (parent, _) = start.rsplit_once('/').map_or(("", start), |(parent, rest)| (parent, rest));
    let folder = if start.starts_with('/') && parent.is_empty() { "/" } else { parent };
    let entries =
        std::fs::read_dir(if folder.is_empty() { "." } else { folder }).into_iter().flatten().flatten();
    let model = |entry: DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let end = if entry.path().is_dir() { "/" } else { "" };
        (!end.is_empty() || has_gguf_extension(name.as_ref())).then(|| name + end)
    };
    let full_path =
        |name: String| if parent.is_empty() && folder != "/" { name } else { format!("{parent}/{name}") };
    let visible = entries.filter_map(model).filter(|name| !name.starts_with('.')).map(full_path);
    visible.filter(|path| path.starts_with(start)).map(CompletionCandidate::new).collect()
}
