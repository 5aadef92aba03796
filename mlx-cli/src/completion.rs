//! Completion in shells: commands, flags, and the models that are on this machine.

use std::ffi::OsStr;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use mlx_guide as guide;
use mlx_hub::Cache;

/// The variable by which a completion script asks for candidates.
pub(crate) const VARIABLE: &str = "MLX_COMPLETE";

/// Answers a shell that asks for candidates, and ends the program then.
pub(crate) fn answer_shell(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Completes the name of a model: those in the cache, the guide, and folders.
pub(crate) fn model_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(models)
}

/// The names of the models that are on this machine.
pub(crate) fn models_here() -> Vec<String> {
    let here = Cache::from_env().and_then(|cache| cache.list()).unwrap_or_default();
    let mut names: Vec<String> = here.into_iter().map(|model| model.name).collect();
    names.push(guide::NAME.to_owned());
    names.dedup();
    names
}

fn models(start: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = start.to_str() else { return Vec::new() };
    let mut candidates: Vec<_> = models_here()
        .into_iter()
        .filter(|name| name.starts_with(start))
        .map(CompletionCandidate::new)
        .collect();
    candidates.extend(folders(start));
    candidates
}

/// Folders that continue a path.
fn folders(start: &str) -> Vec<CompletionCandidate> {
    let (parent, _) = start.rsplit_once('/').map_or(("", start), |(parent, rest)| (parent, rest));
    let place = if start.starts_with('/') && parent.is_empty() { "/" } else { parent };
    let entries =
        std::fs::read_dir(if place.is_empty() { "." } else { place }).into_iter().flatten().flatten();
    let folders = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok());
    let whole =
        |name: String| if parent.is_empty() && place != "/" { name } else { format!("{parent}/{name}") };
    let visible = folders.filter(|name| !name.starts_with('.')).map(whole);
    visible.filter(|path| path.starts_with(start)).map(|path| CompletionCandidate::new(path + "/")).collect()
}
