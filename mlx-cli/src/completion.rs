//! Shell completion of commands, flags and local models.

use std::ffi::OsStr;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use mlx_guide as guide;
use mlx_hub::Cache;

/// The environment variable with which a completion script requests candidates.
pub(crate) const VARIABLE: &str = "MLX_COMPLETE";

/// Answers a completion request of a shell and exits; otherwise does nothing.
pub(crate) fn answer_shell(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Completes a model name: cached models, the guide, and folders.
pub(crate) fn model_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(models)
}

/// Returns the names of the local models.
pub(crate) fn local_models() -> Vec<String> {
    let here = Cache::from_env().and_then(|cache| cache.list()).unwrap_or_default();
    let mut names: Vec<String> = here.into_iter().map(|model| model.name).collect();
    names.push(guide::NAME.to_owned());
    names.dedup();
    names
}

fn models(start: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = start.to_str() else { return Vec::new() };
    let mut candidates: Vec<_> = local_models()
        .into_iter()
        .filter(|name| name.starts_with(start))
        .map(CompletionCandidate::new)
        .collect();
    candidates.extend(folders(start));
    candidates
}

/// Returns the folders that complete a path.
fn folders(start: &str) -> Vec<CompletionCandidate> {
    let (parent, _) = start.rsplit_once('/').map_or(("", start), |(parent, rest)| (parent, rest));
    let folder = if start.starts_with('/') && parent.is_empty() { "/" } else { parent };
    let entries =
        std::fs::read_dir(if folder.is_empty() { "." } else { folder }).into_iter().flatten().flatten();
    let folders = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok());
    let full_path =
        |name: String| if parent.is_empty() && folder != "/" { name } else { format!("{parent}/{name}") };
    let visible = folders.filter(|name| !name.starts_with('.')).map(full_path);
    visible.filter(|path| path.starts_with(start)).map(|path| CompletionCandidate::new(path + "/")).collect()
}
