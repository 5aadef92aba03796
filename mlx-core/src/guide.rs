//! The built-in model: a small demo that knows this tool and nothing else, so that a first chat needs no download. `guide/` at the top
//! of the repository has the text that it was trained on and the script that trained it.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};

/// Its name.
pub const NAME: &str = "guide";

/// What a person has to know of it.
pub const NOTE: &str = "this is the guide, a small built-in demo that knows this tool only; `mlx pull NAME` gets a real model, \
                        -m NAME or -m FOLDER takes it";

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../guide/model/", $name)))
    };
}

const FILES: [(&str, &[u8]); 5] = [
    file!("config.json"),
    file!("generation_config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
];

/// The folder with its files, which lie in the program until they are first asked for.
pub fn folder() -> Result<PathBuf> {
    let mut hash = Xxh3::new();
    for (_, bytes) in FILES {
        hash.update(bytes);
    }
    let cache = cache_folder().ok_or_else(|| {
        Error::file(
            NAME,
            "has no place to be unpacked to; set XDG_CACHE_HOME to a folder that can be written",
        )
    })?;
    let place = cache.join(format!("mlx/{NAME}-{:016x}", hash.digest()));
    unpack(&place).map_err(|error| Error::io(&place, error))?;
    Ok(place)
}

/// `$XDG_CACHE_HOME`, else below the home folder.
fn cache_folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(std::env::home_dir()?.join(".cache")))
}

fn is_whole(place: &Path) -> bool {
    FILES.iter().all(|(name, bytes)| std::fs::read(place.join(name)).is_ok_and(|it| it == *bytes))
}

/// Makes sure that all files are in `place`, each as it is here. They are written beside it and moved at once, so that nobody ever
/// sees half of them.
fn unpack(place: &Path) -> io::Result<()> {
    if is_whole(place) {
        return Ok(());
    }
    let beside = |kind: &str| place.with_extension(format!("{}.{kind}", std::process::id()));
    let (fresh, damaged) = (beside("new"), beside("old"));
    let moved = write(&fresh).and_then(|()| match std::fs::rename(&fresh, place) {
        // Somebody else was faster, or what is there is damaged.
        Err(_) if is_whole(place) => Ok(()),
        Err(_) => {
            std::fs::rename(place, &damaged)?;
            std::fs::rename(&fresh, place)
        }
        Ok(()) => Ok(()),
    });
    for left in [fresh, damaged] {
        std::fs::remove_dir_all(left).ok();
    }
    moved
}

fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    FILES.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}
