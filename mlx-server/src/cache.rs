//! What is kept of past prompts and answers: the flags, for every command that starts an engine, and the settings they become.

use std::path::PathBuf;

use clap::Args;
use mlx_core::cache::DiskOptions;
use mlx_core::engine::EngineOptions;
use serde::{Deserialize, Serialize};

use crate::human_units::ByteSize;

/// Everything about caches.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct CacheArgs {
    /// What outlives a request.
    #[command(flatten)]
    #[serde(flatten)]
    pub kept: KeptArgs,
    /// How numbers are kept.
    #[command(flatten)]
    #[serde(flatten)]
    pub numbers: NumberArgs,
}

/// How much of past prompts and answers is kept, and where.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KeptArgs {
    /// Bytes of past prompts and answers that are kept, so that what begins like them starts faster; 0 keeps none
    /// [default: a quarter of what requests may take]
    #[arg(long, value_name = "SIZE", env = "MLX_PREFIX_CACHE")]
    prefix_cache: Option<ByteSize>,

    /// Save them in this folder, too, and take them up again in later runs
    #[arg(long, value_name = "FOLDER", env = "MLX_PROMPT_CACHE_DIR")]
    prompt_cache_dir: Option<PathBuf>,

    /// The most bytes of files in that folder; what was used longest ago makes room [default: 16GB]
    #[arg(long, value_name = "SIZE", env = "MLX_PROMPT_CACHE_SIZE")]
    prompt_cache_size: Option<ByteSize>,

    /// The most bytes that are written there in an hour [default: 4GB]
    #[arg(long, value_name = "SIZE", env = "MLX_PROMPT_CACHE_WRITES")]
    prompt_cache_writes: Option<ByteSize>,
}

/// How the numbers of a cache are kept.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NumberArgs {
    /// Keep keys and values in 4 or 8 bits: less memory, and answers that are only approximately the model's [default: as they are]
    #[arg(long, value_name = "BITS", env = "MLX_KV_BITS")]
    pub kv_bits: Option<u8>,
}

/// See [`CacheArgs`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheConfig {
    /// Bytes in memory; a share of what requests may take if nothing is said.
    pub prefix_cache: Option<ByteSize>,
    /// The folder, if there is one.
    pub prompt_cache_dir: Option<PathBuf>,
    /// Bytes in the folder.
    pub prompt_cache_size: Option<ByteSize>,
    /// Bytes written in an hour.
    pub prompt_cache_writes: Option<ByteSize>,
    /// Bits of a number of keys and values; as they are if nothing is said.
    pub kv_bits: Option<u8>,
}

impl KeptArgs {
    /// The settings, where no file says anything.
    pub fn config(&self, numbers: &NumberArgs) -> CacheConfig {
        let Self { prefix_cache, prompt_cache_dir, prompt_cache_size, prompt_cache_writes } = self.clone();
        let kv_bits = numbers.kv_bits;
        CacheConfig { prefix_cache, prompt_cache_dir, prompt_cache_size, prompt_cache_writes, kv_bits }
    }
}

impl CacheConfig {
    /// Puts what these settings say into the options of an engine.
    pub fn apply(&self, options: &mut EngineOptions) {
        options.prompt_cache = self.prompt_cache_dir.clone().map(|folder| {
            let default = DiskOptions::new(folder);
            DiskOptions {
                most_bytes: self.prompt_cache_size.map_or(default.most_bytes, |size| size.0),
                hourly_writes: self.prompt_cache_writes.map_or(default.hourly_writes, |size| size.0),
                ..default
            }
        });
        options.prefix_cache = self.prefix_cache.map(|size| size.0);
        options.kv_bits = self.kv_bits;
    }

    /// The flag that says something senseless, and why.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !matches!(self.kv_bits, None | Some(4 | 8)) {
            return Err(("--kv-bits", "must be 4 or 8"));
        }
        if self.kv_bits.is_some() && self.prompt_cache_dir.is_some() {
            return Err((
                "--kv-bits",
                "cannot be used with --prompt-cache-dir, which saves the numbers as they were computed",
            ));
        }
        if self.prompt_cache_dir.is_none() {
            let why = "says something about a folder that is not there; give --prompt-cache-dir, too";
            let flags = [
                ("--prompt-cache-size", self.prompt_cache_size),
                ("--prompt-cache-writes", self.prompt_cache_writes),
            ];
            return flags.iter().find(|it| it.1.is_some()).map_or(Ok(()), |it| Err((it.0, why)));
        }
        match self.prefix_cache {
            Some(ByteSize(0)) => Err((
                "--prefix-cache",
                "is 0, but --prompt-cache-dir saves what is kept in memory; allow it some bytes",
            )),
            _ => Ok(()),
        }
    }
}
