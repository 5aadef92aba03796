//! The file that stores the name of the default model, on one line.

use std::io::ErrorKind;
use std::path::PathBuf;

use mlx_core::{Error, Result};
use mlx_hub::path_in;

/// Sets the default model.
pub(crate) fn write(name: &str) -> Result<()> {
    let path = path()?;
    let about = |error| Error::io(&path, error);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(about)?;
    std::fs::write(&path, format!("{name}\n")).map_err(about)
}

/// Returns the default model, if any.
pub(crate) fn read() -> Result<Option<PathBuf>> {
    // Without a home folder there is no default model.
    let Ok(path) = path() else { return Ok(None) };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim()).filter(|name| !name.is_empty()).map(PathBuf::from)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, error)),
    }
}

/// Removes the default model.
pub(crate) fn remove() -> Result<()> {
    let path = path()?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Returns `mlx/default-model` in `$XDG_CONFIG_HOME`, or in `~/.config`.
fn path() -> Result<PathBuf> {
    let named = path_in("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = named
        .or_else(|| Some(std::env::home_dir()?.join(".config")))
        .ok_or_else(|| Error::environment("HOME", "is not set, so the default model cannot be stored"))?;
    Ok(config.join("mlx/default-model"))
}
