//! The file of profiles, as a server reads it.

use std::path::Path;
use std::sync::Arc;

use mlx_options::{Profile, describe, read_profiles};

use super::entry::Entry;

/// Reads the file, and finds the folders of the adapters.
pub(super) fn read(path: &Path) -> Result<Vec<Arc<Profile>>, String> {
    let located = |mut profile: Profile| {
        if let Some(adapter) = &profile.adapter {
            let folder = mlx_hub::resolve_adapter(adapter).map_err(|error| {
                let Profile { line, name, .. } = &profile;
                about(path, &format!("line {line}: adapter of {name:?}: {}", describe(&error.into())))
            });
            profile.adapter = Some(folder?);
        }
        Ok(Arc::new(profile))
    };
    read_profiles(path)?.into_iter().map(located).collect()
}

/// Returns an error about the file.
pub(super) fn about(path: &Path, reason: &str) -> String {
    format!("{}: {reason}", path.display())
}

/// Returns an error if a profile has the name of a model of the flags.
pub(super) fn check_names<E: AsRef<Entry>>(profiles: &[Arc<Profile>], given: &[E]) -> Result<(), String> {
    let is_taken = |name: &str| given.iter().any(|entry| entry.as_ref().is_called(name));
    profiles.iter().find(|profile| is_taken(&profile.name)).map_or(Ok(()), |profile| {
        let Profile { line, name, .. } = &**profile;
        Err(format!(
            "line {line}: name {name:?} is also the name of a model of the flags; choose another name"
        ))
    })
}
