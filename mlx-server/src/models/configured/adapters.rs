//! The adapters of the first model and of profiles, served as models. All adapters of a folder share its engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx_core::engine::EngineOptions;
use mlx_options::{Profile, describe};

use super::{digest, entry, open};
use crate::config::{ModelConfig, StartError};
use crate::models::entry::{Entry, weight_bytes};
use crate::models::profile_file::about;

/// An adapter to serve.
struct Adapter {
    name: String,
    folder: PathBuf,
    /// The index of its model.
    base: usize,
    of_profile: bool,
}

/// Adds the adapters of the flags and of the profiles as models. A model that only a profile with an adapter names is added too.
pub(super) fn add(
    entries: &mut Vec<Entry>,
    config: &ModelConfig,
    profiles: &[Arc<Profile>],
    options: &EngineOptions,
) -> Result<(), StartError> {
    let mut adapters = of_flags(entries, config)?;
    let fail = |profile: &Profile, reason: &str| {
        let path = config.profiles.as_deref().unwrap_or(Path::new(""));
        let reason = format!("line {}: {:?}: {reason}", profile.line, profile.name);
        StartError::new("--profiles", about(path, &reason))
    };
    for profile in profiles {
        let Some(folder) = &profile.adapter else { continue };
        let base = base_of(entries, config, &profile.model, options);
        let base = base.map_err(|reason| fail(profile, &reason))?;
        let same = |other: &Adapter| other.folder == *folder && other.base == base && other.of_profile;
        if !adapters.iter().any(same) {
            let (name, folder) = (profile.name.clone(), folder.clone());
            check(&entries[base], &folder, options).map_err(|reason| fail(profile, &reason))?;
            adapters.push(Adapter { name, folder, base, of_profile: true });
        }
    }
    add_entries(entries, &adapters, options).map_err(|reason| StartError::new("--adapter", reason))
}

/// Returns the adapters of the flags, which belong to the first model.
fn of_flags(entries: &[Entry], config: &ModelConfig) -> Result<Vec<Adapter>, StartError> {
    let mut adapters: Vec<Adapter> = Vec::new();
    for given in &config.adapter {
        let (name, location) = given.split_once('=').unwrap_or(("", given));
        let is_taken = |name: &str| {
            entries.iter().any(|entry| entry.name == name) || adapters.iter().any(|other| other.name == name)
        };
        if name.is_empty() || is_taken(name) {
            let reason = format!("{given} gives no new name; the form is NAME=FOLDER");
            return Err(StartError::new("--adapter", reason));
        }
        let folder = mlx_hub::resolve_adapter(Path::new(location));
        let folder = folder.map_err(|error| StartError::new("--adapter", describe(&error.into())))?;
        adapters.push(Adapter { name: name.to_owned(), folder, base: 0, of_profile: false });
    }
    Ok(adapters)
}

/// Returns the index of the model that a profile names. Adds the model if the flags do not name it.
fn base_of(
    entries: &mut Vec<Entry>,
    config: &ModelConfig,
    model: &str,
    options: &EngineOptions,
) -> Result<usize, String> {
    let alias = config.alias.iter().filter_map(|alias| alias.split_once('='));
    let name = alias.into_iter().find(|(alias, _)| *alias == model).map_or(model, |(_, name)| name);
    if let Some(index) = entries.iter().position(|entry| entry.has_name(name)) {
        return Ok(index);
    }
    if options.workers.is_some() {
        return Err(format!("{model} is not the model of --model, which the workers hold"));
    }
    let entry = open(None, model, options)?;
    if let Some(index) = entries.iter().position(|other| other.is_at(entry.folder())) {
        return Ok(index);
    }
    entries.push(Entry { of_profile: true, ..entry });
    Ok(entries.len() - 1)
}

/// Checks that an adapter fits its model.
fn check(base: &Entry, folder: &Path, options: &EngineOptions) -> Result<(), String> {
    let options = EngineOptions { adapters: vec![folder.to_owned()], ..options.clone() };
    weight_bytes(&base.folder, &options).map(drop).map_err(|error| describe(&error))
}

/// Adds an entry for each adapter. A faulty adapter is a startup error. A faulty model is reported when it is loaded.
fn add_entries(
    entries: &mut Vec<Entry>,
    adapters: &[Adapter],
    options: &EngineOptions,
) -> Result<(), String> {
    let models = entries.len();
    for adapter in adapters {
        // Names of the same folder share an engine.
        let folder = entries[adapter.base].folder.clone();
        let is_same = |entry: &Entry| entry.is_at(&folder);
        let of_folder: Vec<&Adapter> =
            adapters.iter().filter(|other| is_same(&entries[other.base])).collect();
        let folders: Vec<PathBuf> = of_folder.iter().map(|other| other.folder.clone()).collect();
        let index = of_folder.iter().position(|other| std::ptr::eq(*other, adapter)).unwrap_or_default();
        let with_adapters = EngineOptions { adapters: folders.clone(), ..options.clone() };
        let bytes = weight_bytes(&folder, &with_adapters).map_err(|error| describe(&error))?;
        for entry in entries[..models].iter_mut().filter(|entry| entry.is_at(&folder)) {
            entry.adapters.clone_from(&folders);
            entry.weight_bytes.store(bytes, Ordering::Relaxed);
        }
        let base = &entries[adapter.base];
        entries.push(Entry {
            digest: digest([&folder, &folders[index]]),
            adapters: folders,
            adapter: Some((index, base.name.clone())),
            of_profile: adapter.of_profile,
            weight_bytes: AtomicU64::new(bytes),
            ..entry(adapter.name.clone(), None, folder, options)
        });
    }
    Ok(())
}
