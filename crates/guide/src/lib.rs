//! The guide: a small built-in model that only answers questions about this tool, so that a first chat needs no
//! download. This folder also has its training text and training script. The programs embed the model; mlx-core does
//! not.
#![forbid(unsafe_code)]

mod questions;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use mlx_core::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

pub use questions::nearest;

/// The name of the model.
pub const NAME: &str = "guide";

/// A description for users.
pub const NOTE: &str = "this is the guide, a tiny built-in model that only knows `mlx`; `mlx pull ORG/NAME` downloads a real one, \
                        -m ORG/NAME uses it";

/// The threshold for the probability of an answer's least likely token. Below it, an answer is wrong as often as it is
/// right. It is fitted on phrasings that the guide was not trained on; `evaluation.json` has the results.
pub const CONFIDENCE_THRESHOLD: f32 = 0.81;

/// Returns true if an answer whose tokens have these log-probabilities is likely to be wrong.
pub fn is_uncertain(logprobs: impl Iterator<Item = f32>) -> bool {
    logprobs.fold(0.0, f32::min).exp() < CONFIDENCE_THRESHOLD
}

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../model/", $name)))
    };
}

const FILES: [(&str, &[u8]); 5] = [
    file!("config.json"),
    file!("generation_config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
];

/// Returns the folder of the guide's files. The first call unpacks them from the program.
pub fn folder() -> Result<PathBuf> {
    let place = place().ok_or_else(|| {
        Error::file(
            NAME,
            "cannot be unpacked: neither XDG_CACHE_HOME nor HOME is set; set one of them to a writable folder",
        )
    })?;
    unpack(&place).map_err(|error| Error::io(&place, error))?;
    Ok(place)
}

/// Returns true if `folder` is the guide's.
pub fn is_at(folder: &Path) -> bool {
    place().is_some_and(|place| place == folder)
}

/// Returns the folder into which the guide's files are unpacked. Its name contains a hash of the files.
fn place() -> Option<PathBuf> {
    static DIGEST: LazyLock<u64> = LazyLock::new(|| {
        let mut hash = Xxh3::new();
        for (_, bytes) in FILES {
            hash.update(bytes);
        }
        hash.digest()
    });
    Some(cache_folder()?.join(format!("mlx/{NAME}-{:016x}", *DIGEST)))
}

/// Returns `$XDG_CACHE_HOME`, or `.cache` in the home folder.
fn cache_folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(std::env::home_dir()?.join(".cache")))
}

fn is_whole(place: &Path) -> bool {
    FILES.iter().all(|(name, bytes)| std::fs::read(place.join(name)).is_ok_and(|it| it == *bytes))
}

/// Ensures that `place` has all files with the embedded contents. Files are written to a temporary folder that is then
/// renamed, so that no process reads incomplete files.
fn unpack(place: &Path) -> io::Result<()> {
    if is_whole(place) {
        return Ok(());
    }
    let beside = |kind: &str| place.with_extension(format!("{}.{kind}", std::process::id()));
    let (fresh, damaged) = (beside("new"), beside("old"));
    let moved = write(&fresh).and_then(|()| match std::fs::rename(&fresh, place) {
        // Another process was faster, or the existing files are damaged.
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
