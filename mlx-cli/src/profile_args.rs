//! `-P`: the profile of a chat or a prompt.

use std::ffi::OsStr;
use std::path::PathBuf;

use chat_format::Thinking;
use clap::Args;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use mlx_core::Error;
use mlx_core::engine::RequestOptions;
use mlx_options::{Profile, closest, read_profiles};

use crate::default_file;
use crate::exit_code::Failure;
use crate::model_args::{ModelArgs, ModelName};
use crate::think::ThinkArgs;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ProfileArgs {
    /// Use this profile: a name for a model with a system prompt and other settings; flags take precedence over them
    #[arg(short = 'P', long, value_name = "NAME", add = ArgValueCompleter::new(names))]
    profile: Option<String>,

    /// The TOML file of profiles [default: MLX_PROFILES, else ~/.config/mlx/profiles.toml]
    #[arg(long, value_name = "FILE", requires = "profile")]
    profiles: Option<PathBuf>,
}

impl ProfileArgs {
    /// Returns true if a profile is given.
    pub(crate) fn is_given(&self) -> bool {
        self.profile.is_some()
    }

    /// Reads the given profile.
    pub(crate) fn read(&self) -> Result<Option<Profile>, Failure> {
        let Some(name) = &self.profile else { return Ok(None) };
        let path = match self.profiles.clone().or_else(from_environment) {
            Some(path) => path,
            None => default_file::profiles()?,
        };
        let mut profiles = read_profiles(&path).map_err(|reason| Failure::Usage(format!("-P: {reason}")))?;
        if let Some(index) = profiles.iter().position(|profile| profile.name == *name) {
            return Ok(Some(profiles.swap_remove(index)));
        }
        let known: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        let hint = match closest(name, known.iter().copied()) {
            Some(similar) => format!("did you mean {similar}?"),
            None if known.is_empty() => "it has none".to_owned(),
            None => format!("there are: {}", known.join(", ")),
        };
        Err(Failure::usage("-P", format!("{name} is not a profile of {}; {hint}", path.display())))
    }
}

/// Returns the options of the flags with those of a profile.
pub(crate) fn with_profile(profile: Option<&Profile>, flags: &RequestOptions) -> RequestOptions {
    profile.map_or_else(|| flags.clone(), |profile| profile.over(flags.clone()))
}

/// Returns the model of the flags, or that of a profile.
pub(crate) fn model_with_profile(profile: Option<&Profile>, flags: &ModelArgs) -> Result<ModelArgs, Failure> {
    let (mut model, Some(profile)) = (flags.clone(), profile) else { return Ok(flags.clone()) };
    if model.name.given()?.is_none() {
        model.name = ModelName::from_path(profile.model.as_ref());
    }
    model.adapter = model.adapter.or_else(|| profile.adapter.clone());
    Ok(model)
}

/// Returns the reasoning of the flags, or that of a profile.
pub(crate) fn thinking_with_profile(profile: Option<&Profile>, flags: &ThinkArgs) -> Thinking {
    flags.given().or_else(|| profile?.think).unwrap_or_default()
}

/// Returns an error about the reasoning that names the flag or the profile.
pub(crate) fn think_error(profile: Option<&Profile>, flags: &ThinkArgs, error: Error) -> Failure {
    match (profile, error) {
        (Some(Profile { name, .. }), Error::Request { field: "think", message })
            if flags.given().is_none() =>
        {
            Failure::usage("-P", format!("{name} sets think: {message}"))
        }
        (_, error) => flags.with_given_flag(error).into(),
    }
}

fn from_environment() -> Option<PathBuf> {
    mlx_hub::path_in("MLX_PROFILES")
}

/// Completes the name of a profile.
fn names(start: &OsStr) -> Vec<CompletionCandidate> {
    let path = from_environment().or_else(|| default_file::profiles().ok());
    let profiles = path.and_then(|path| read_profiles(&path).ok()).unwrap_or_default();
    let names = profiles.into_iter().map(|profile| profile.name);
    names
        .filter(|name| start.to_str().is_some_and(|start| name.starts_with(start)))
        .map(CompletionCandidate::new)
        .collect()
}
