//! Finds the configured models without loading them.

mod adapters;

use std::ffi::OsString;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use mlx_core::engine::EngineOptions;
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Abilities, model};
use mlx_gguf::GgufFolder;
use mlx_guide as guide;
use mlx_options::{Profile, describe};
use sha2::{Digest, Sha256};

use super::entry::{Entry, file_bytes};
use super::profile_file::{about, check_names};
use super::residence::Residence;
use crate::config::{ModelConfig, StartError};

/// The maximum length of the configuration that is hashed, in bytes.
const MAX_CONFIG_LEN: u64 = 1 << 20;

/// Returns the configured models, with their aliases and adapters, and those of the profiles.
pub(super) fn all(
    config: &ModelConfig,
    profiles: &[Arc<Profile>],
    options: &EngineOptions,
) -> Result<Vec<Entry>, StartError> {
    let mut entries: Vec<Entry> = Vec::new();
    if config.model.is_empty() {
        tracing::info!("no model is given; {}", guide::NOTE);
        entries.push(open_given(guide::NAME, options)?);
    }
    for given in &config.model {
        let entry = open_given(given, options)?;
        let is_taken = |name: &String| entries.iter().any(|other| other.has_name(name));
        if is_taken(&entry.name) || entry.aliases.iter().any(is_taken) {
            let reason = format!("{} is there twice; give one another name with NAME=MODEL", entry.name);
            return Err(StartError::new("--model", reason));
        }
        entries.push(entry);
    }
    check_configs(&entries)?;
    adapters::add(&mut entries, config, profiles, options)?;
    for given in &config.alias {
        let (alias, name) = given.split_once('=').unwrap_or((given, ""));
        if alias.is_empty() || entries.iter().any(|entry| entry.has_name(alias)) {
            return Err(StartError::new("--alias", format!("{given} gives no new name")));
        }
        match entries.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.aliases.push(alias.to_owned()),
            None => {
                return Err(StartError::new(
                    "--alias",
                    format!("{given} names no model; the form is ALIAS=NAME"),
                ));
            }
        }
    }
    for name in &config.pin {
        match entries.iter().find(|entry| entry.has_name(name)) {
            Some(entry) => entry.residence.pin(true),
            None => return Err(StartError::new("--pin", format!("{name} is not a model of --model"))),
        }
    }
    let path = config.profiles.as_deref().unwrap_or(Path::new(""));
    check_names(profiles, &entries).map_err(|reason| StartError::new("--profiles", about(path, &reason)))?;
    Ok(entries)
}

/// Returns an error if no model can be loaded. If only some cannot, logs them; their clients get the cause later.
fn check_configs(entries: &[Entry]) -> Result<(), StartError> {
    let fault = |entry: &Entry| {
        let error = model::check_config(&entry.folder).err()?;
        Some((entry.name.clone(), describe(&error)))
    };
    let mut faults: Vec<(String, String)> = entries.iter().filter_map(fault).collect();
    if faults.len() == entries.len()
        && let Some((_, reason)) = faults.pop()
    {
        return Err(StartError::new("--model", reason));
    }
    for (model, reason) in faults {
        tracing::error!(model, error = reason, "a model cannot be loaded; the others are served");
    }
    Ok(())
}

/// Opens the model of a `--model` flag, which may name it.
fn open_given(given: &str, options: &EngineOptions) -> Result<Entry, StartError> {
    let split = given.split_once('=').filter(|(name, _)| !name.is_empty() && !Path::new(given).exists());
    let (name, location) = split.map_or((None, given), |(name, location)| (Some(name), location));
    open(name, location, options).map_err(|reason| StartError::new("--model", reason))
}

/// Opens a model: a folder or a GGUF file, by path or by name. An error is the reason.
pub(super) fn open(name: Option<&str>, location: &str, options: &EngineOptions) -> Result<Entry, String> {
    let folder = locate(location)?;
    // The name that the operator gave, which may lack the quantization of a GGUF file.
    let is_alias = name.is_none() && !Path::new(location).exists();
    let name = name.or((location == guide::NAME).then_some(guide::NAME));
    let name = name.map_or_else(|| name_of(&folder), str::to_owned);
    let alias = Some(location).filter(|location| is_alias && *location != name);
    Ok(entry(name, alias, folder, options))
}

/// Returns the folder or the GGUF file of a model, by path or by name. An error is the reason.
pub(super) fn locate(location: &str) -> Result<PathBuf, String> {
    let is_guide = location == guide::NAME;
    let folder =
        if is_guide { guide::folder() } else { mlx_hub::resolve(Path::new(location)).map_err(Into::into) };
    let folder = folder.map_err(|error| describe(&error))?;
    let config = if folder.is_file() { folder.clone() } else { folder.join("config.json") };
    if !config.exists() {
        return Err(format!("{}: is not a model folder: it has no config.json", folder.display()));
    }
    Ok(folder)
}

/// Returns a model that was found on this machine. `None` if this program cannot run it.
pub(super) fn local_entry(name: &str, folder: &Path, options: &EngineOptions) -> Option<Entry> {
    model::check_config(folder).ok()?;
    let entry = entry(name.to_owned(), name.strip_suffix(":latest"), folder.to_owned(), options);
    entry.spec.is_some().then_some(entry)
}

fn entry(name: String, alias: Option<&str>, folder: PathBuf, options: &EngineOptions) -> Entry {
    let config = if folder.is_file() { folder.clone() } else { folder.join("config.json") };
    let written = std::fs::metadata(config).and_then(|metadata| metadata.modified());
    let written = written.unwrap_or(SystemTime::UNIX_EPOCH);
    let spec =
        options.weights().and_then(|policy| model::inspect(&folder, policy)).ok().map(|(spec, _)| spec);
    Entry {
        aliases: alias.map(str::to_owned).into_iter().collect(),
        name,
        residence: Residence::default(),
        weight_bytes: AtomicU64::new(
            spec.as_ref().map_or_else(|| file_bytes(&folder), |spec| spec.weight_bytes),
        ),
        spec,
        sampling: SamplingOptions::of_checkpoint(&folder),
        quantization: quantization(&folder),
        abilities: Abilities::of(&folder).ok(),
        capabilities: OnceLock::new(),
        adapters: Vec::new(),
        adapter: None,
        of_profile: false,
        created: written.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        digest: digest([&folder]),
        folder,
        loading: tokio::sync::Mutex::default(),
        is_loading: AtomicBool::default(),
        slot: Mutex::new(None),
    }
}

/// Returns the quantization of a GGUF file; `None` for a folder.
fn quantization(model: &Path) -> Option<&'static str> {
    let named = || GgufFolder::open(model).ok()?.quantization();
    model.is_file().then(|| named().unwrap_or("unknown"))
}

/// Returns the name of the model in its store, or the name of its folder or file. The name of a GGUF file has no suffix.
fn name_of(folder: &Path) -> String {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let own = if folder.is_file() { folder } else { &real };
    let last = || own.file_name().map(|name| name.to_string_lossy().into_owned());
    let stored = mlx_hub::name_of(folder).or_else(|| mlx_hub::name_of(&real));
    stored
        .or_else(|| mlx_hub::gguf_name(folder))
        .or_else(last)
        .unwrap_or_else(|| folder.display().to_string())
}

/// Returns a hash that identifies the model's version: of the names and sizes of all files, and of the configuration. Copies of a folder have
/// the same hash.
fn digest<const COUNT: usize>(folders: [&Path; COUNT]) -> String {
    let mut hash = Sha256::new();
    for folder in folders {
        let size = |path: &Path| Some(path.metadata().ok().filter(Metadata::is_file)?.len());
        // A GGUF file is a model without a folder.
        let parts = if folder.is_file() { mlx_gguf::parts(folder) } else { Vec::new() };
        let own = parts.iter().filter_map(|part| Some((part.file_name()?.to_owned(), size(part)?)));
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let entries = entries.filter_map(|file| Some((file.file_name(), size(&file.path())?)));
        let mut files: Vec<(OsString, u64)> = own.chain(entries).collect();
        files.sort();
        for (name, bytes) in files {
            hash.update(name.as_encoded_bytes());
            hash.update(bytes.to_le_bytes());
        }
        for name in ["config.json", "adapter_config.json"] {
            let file = mlx_files::read_model_file(&folder.join(name), MAX_CONFIG_LEN);
            hash.update(file.ok().flatten().unwrap_or_default());
        }
    }
    hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
