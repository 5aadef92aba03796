//! The guide: a small built-in model that only knows this tool, so that a first chat needs no download. Beside it are the text that it
//! was trained on and the script that trained it. The programs embed it; mlx-core does not.
#![forbid(unsafe_code)]

mod questions;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use mlx_core::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

pub use questions::nearest;

/// Its name.
pub const NAME: &str = "guide";

/// What it is, for people.
pub const NOTE: &str = "this is the guide, a tiny built-in model that only knows `mlx`; `mlx pull ORG/NAME` downloads a real one, \
                        -m ORG/NAME uses it";

/// Below this probability of its least likely token an answer is wrong as often as it is right. Fitted on phrasings that the guide
/// was not trained on; `evaluation.json` has what it finds.
pub const SURE: f32 = 0.74;

/// Whether an answer with these log-probabilities of its tokens is likely to be wrong.
pub fn doubts(logprobs: impl Iterator<Item = f32>) -> bool {
    logprobs.fold(0.0, f32::min).exp() < SURE
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

/// The folder with its files. The first call unpacks them from the program.
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

/// Whether this is the folder of the guide.
pub fn is_at(folder: &Path) -> bool {
    place().is_some_and(|place| place == folder)
}

/// Where its files are, once they are unpacked.
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

/// `$XDG_CACHE_HOME`, else below the home folder.
fn cache_folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(std::env::home_dir()?.join(".cache")))
}

fn is_whole(place: &Path) -> bool {
    FILES.iter().all(|(name, bytes)| std::fs::read(place.join(name)).is_ok_and(|it| it == *bytes))
}

/// Makes sure that all files are in `place`, each as it is here. They are written beside it and renamed, so that no
/// process reads half of them.
fn unpack(place: &Path) -> io::Result<()> {
    if is_whole(place) {
        return Ok(());
    }
    let beside = |kind: &str| place.with_extension(format!("{}.{kind}", std::process::id()));
    let (fresh, damaged) = (beside("new"), beside("old"));
    let moved = write(&fresh).and_then(|()| match std::fs::rename(&fresh, place) {
        // Another process was faster, or the files are damaged.
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
