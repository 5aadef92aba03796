//! The files in the folder of settings: the name of the default model, on one line, and the profiles.

use std::io::ErrorKind;
use std::path::PathBuf;

use mlx_core::{Error, Result};
use mlx_hub::path_in;

/// The file of the default model.
const DEFAULT_MODEL: &str = "default-model";

/// Sets the default model.
pub(crate) fn write(name: &str) -> Result<()> {
    let path = in_settings(DEFAULT_MODEL)?;
    let about = |error| Error::io(&path, error);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(about)?;
    std::fs::write(&path, format!("{name}\n")).map_err(about)
}

/// Returns the default model, if any.
pub(crate) fn read() -> Result<Option<PathBuf>> {
    // Without a home folder there is no default model.
    let Ok(path) = in_settings(DEFAULT_MODEL) else { return Ok(None) };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim()).filter(|name| !name.is_empty()).map(PathBuf::from)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, error)),
    }
}

/// Removes the default model.
pub(crate) fn remove() -> Result<()> {
    let path = in_settings(DEFAULT_MODEL)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Returns the default file of profiles, which may not exist.
pub(crate) fn profiles() -> Result<PathBuf> {
    in_settings("profiles.toml")
}

/// Returns a file of the folder `mlx` in `$XDG_CONFIG_HOME`, or in `~/.config`.
fn in_settings(file: &str) -> Result<PathBuf> {
    let named = path_in("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = named
        .or_else(|| Some(std::env::home_dir()?.join(".config")))
        .ok_or_else(|| Error::environment("HOME", "is not set, so there is no folder for settings"))?;
    Ok(config.join("mlx").join(file))
}
