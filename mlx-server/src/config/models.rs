//! The settings of the served models.

use std::path::PathBuf;

use mlx_engine_process::Program;
use mlx_options::{ByteSize, Seconds};
use serde::{Deserialize, Serialize};

/// See [`crate::args::ModelArgs`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelConfig {
    /// The models, each as `[NAME=]MODEL`: a folder, a GGUF file, or a name that `mlx list` shows.
    pub model: Vec<String>,
    /// The aliases, each as `ALIAS=NAME`.
    pub alias: Vec<String>,
    /// The adapters of the first model, each as `NAME=FOLDER`.
    pub adapter: Vec<String>,
    /// True if all models are loaded at startup.
    pub preload: bool,
    /// The memory for all loaded models together.
    pub models_budget: Option<ByteSize>,
    /// True if the engines run in the server's process, and not in child processes.
    pub in_process: bool,
    /// The program of the child processes. [`crate::run`] sets it; without it, engines run in this process.
    #[serde(skip)]
    pub engine_program: Option<Program>,
    /// The time without a request after which a model is unloaded.
    pub idle_timeout: Option<Seconds>,
    /// False to serve only the models of `model`. By default, requests can name every model on this machine.
    pub all_models: Option<bool>,
    /// True if clients may download models from the Hugging Face Hub.
    pub allow_pull: bool,
    /// Folders of models that requests can name.
    pub models_dir: Vec<PathBuf>,
    /// The file of profiles.
    pub profiles: Option<PathBuf>,
    /// The number of models that share the memory.
    pub loaded_models: Option<usize>,
    /// The models of `model` that are only unloaded on request.
    pub pin: Vec<String>,
}

impl ModelConfig {
    /// Rejects settings that would have no effect. An error is the flag and the reason.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.loaded_models == Some(0) {
            return Err(("--loaded-models", "is 0; at least one model must be loaded".to_owned()));
        }
        if self.all_models == Some(false) && !self.models_dir.is_empty() {
            let reason = "has no effect with --all-models=false; leave one of them out";
            return Err(("--models-dir", reason.to_owned()));
        }
        if self.all_models == Some(false) && self.allow_pull {
            let reason =
                "has no effect with --all-models=false, since only the models of --model are served then";
            return Err(("--allow-pull", reason.to_owned()));
        }
        match self.models_dir.iter().find(|folder| !folder.is_dir()) {
            Some(folder) => Err(("--models-dir", format!("{} is not a folder", folder.display()))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_without_effect_are_refused_by_name() {
        let (all_models, folder) = (Some(false), vec![PathBuf::from(".")]);
        for (flag, config) in [
            ("--models-dir", ModelConfig { all_models, models_dir: folder, ..ModelConfig::default() }),
            ("--allow-pull", ModelConfig { all_models, allow_pull: true, ..ModelConfig::default() }),
        ] {
            assert_eq!(config.check().expect_err("it is refused").0, flag);
        }
        assert!(ModelConfig { allow_pull: true, ..ModelConfig::default() }.check().is_ok());
    }
}
