//! Cache flags: memory and disk limits of the prefix cache, and quantization of keys and values.

use std::path::PathBuf;

use clap::Args;
use mlx_core::cache::DiskOptions;
use mlx_core::engine::EngineOptions;
use mlx_hub::expanded;
use serde::{Deserialize, Serialize};

use crate::human_units::ByteSize;

/// All cache flags, as the server takes them.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheArgs {
    /// The cache of past prompts and answers.
    #[command(flatten)]
    #[serde(flatten)]
    pub prefix: PrefixCacheArgs,
    /// Storage of keys and values.
    #[command(flatten)]
    #[serde(flatten)]
    pub kv: KvCacheArgs,
    /// Share cached prefixes, image features and answers between clients; this lets a client detect what others have
    /// sent [default: true without API keys, else false]
    #[arg(help_heading = "Cache", long, env = "MLX_SHARE_PREFIXES", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    #[serde(rename = "share-prefixes")]
    pub share_prefixes: Option<bool>,
}

/// Flags of the prefix cache: its memory, and its folder on disk.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct PrefixCacheArgs {
    /// Memory for cached prompts and answers, so that requests with the same prefix start faster; an entry is also
    /// evicted after 512 others were stored or reused since its last use; 0 disables the cache [default: a quarter of
    /// the memory for requests]
    #[arg(help_heading = "Cache", long, value_name = "SIZE", env = "MLX_PREFIX_CACHE")]
    pub prefix_cache: Option<ByteSize>,

    /// Also save cached prefixes in this folder, for later runs
    #[arg(help_heading = "Cache", long, value_name = "FOLDER", env = "MLX_PROMPT_CACHE_DIR")]
    pub prompt_cache_dir: Option<PathBuf>,

    /// Maximum size of that folder; the least recently used prefixes are removed first [default: 16GB]
    #[arg(help_heading = "Cache", long, value_name = "SIZE", env = "MLX_PROMPT_CACHE_SIZE")]
    pub prompt_cache_size: Option<ByteSize>,

    /// Maximum bytes written to that folder per hour [default: 4GB]
    #[arg(help_heading = "Cache", long, value_name = "SIZE", env = "MLX_PROMPT_CACHE_WRITES")]
    pub prompt_cache_writes: Option<ByteSize>,
}

/// Flags for the storage of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct KvCacheArgs {
    /// Quantize keys and values to 4 or 8 bits: uses less memory, but answers only approximate the model's [default:
    /// not quantized]
    #[arg(help_heading = "Cache", long, value_name = "BITS", env = "MLX_KV_BITS")]
    pub kv_bits: Option<u8>,
}

impl CacheArgs {
    /// Copies the given values into the options of an engine.
    pub fn apply(&self, options: &mut EngineOptions) {
        let Self { prefix, kv, share_prefixes } = self;
        let disk = |folder: &PathBuf| {
            let mut disk = DiskOptions::new(expanded(folder));
            disk.max_bytes = prefix.prompt_cache_size.map_or(disk.max_bytes, |size| size.0);
            disk.max_writes_per_hour =
                prefix.prompt_cache_writes.map_or(disk.max_writes_per_hour, |size| size.0);
            disk
        };
        options.prompt_cache = prefix.prompt_cache_dir.as_ref().map(disk);
        options.prefix_cache = prefix.prefix_cache.map(|size| size.0);
        options.kv_bits = kv.kv_bits;
        options.share_prefixes = share_prefixes.unwrap_or(options.share_prefixes);
    }

    /// Checks the values. An error contains the flag and the problem with its value.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let Self { prefix, kv, .. } = self;
        if !matches!(kv.kv_bits, None | Some(4 | 8)) {
            return Err(("--kv-bits", "must be 4 or 8"));
        }
        if prefix.prompt_cache_dir.is_some() {
            if kv.kv_bits.is_some() {
                return Err((
                    "--kv-bits",
                    "cannot be used with --prompt-cache-dir, which saves keys and values unquantized",
                ));
            }
            if prefix.prefix_cache == Some(ByteSize(0)) {
                return Err(("--prefix-cache", "is 0, but --prompt-cache-dir saves what is kept in memory"));
            }
            return Ok(());
        }
        let why = "needs a folder; give --prompt-cache-dir too";
        let of_the_folder = [
            ("--prompt-cache-size", prefix.prompt_cache_size),
            ("--prompt-cache-writes", prefix.prompt_cache_writes),
        ];
        of_the_folder.iter().find(|it| it.1.is_some()).map_or(Ok(()), |it| Err((it.0, why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_names_of_the_flags_and_no_others() {
        let text = "prefix-cache = '1GB'\nprompt-cache-dir = 'a'\nprompt-cache-size = 2000\nprompt-cache-writes = 3000\nshare-prefixes = false";
        let args: CacheArgs = toml::from_str(text).expect("every flag of the prefix cache");
        assert_eq!(args.check(), Ok(()));
        let mut options = EngineOptions::default();
        args.apply(&mut options);
        let disk = options.prompt_cache.expect("a folder");
        assert_eq!((disk.max_bytes, disk.max_writes_per_hour), (2000, 3000));
        assert_eq!((options.prefix_cache, options.kv_bits), (Some(1_000_000_000), None));
        assert!(!options.share_prefixes);
        let wrong = toml::from_str::<CacheArgs>("kv-bit = 4").expect_err("a typing error");
        assert!(wrong.message().contains("kv-bit"), "{wrong}");
    }

    #[test]
    fn flags_that_exclude_each_other_are_named() {
        for (text, flag) in [
            ("kv-bits = 3", "--kv-bits"),
            ("kv-bits = 4\nprompt-cache-dir = 'a'", "--kv-bits"),
            ("prefix-cache = 0\nprompt-cache-dir = 'a'", "--prefix-cache"),
            ("prompt-cache-writes = 1", "--prompt-cache-writes"),
        ] {
            let args: CacheArgs = toml::from_str(text).expect("known names");
            assert_eq!(args.check().expect_err(text).0, flag);
        }
    }
}
