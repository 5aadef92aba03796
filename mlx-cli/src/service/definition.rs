//! The definition of the service, independent of the service manager.

use std::path::{Path, PathBuf};

use mlx_core::{Error, is_mlx_default};

use crate::exit_code::Failure;

/// Variables that select the models and the folders of the user. A service manager does not pass them on.
const VARIABLES: [&str; 11] = [
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_TOKEN_PATH",
    "OLLAMA_MODELS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The seconds that the server may take to end. It is longer than the default of `--shutdown-timeout`.
pub(super) const STOP_SECONDS: u32 = 45;

/// A command with its surroundings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// The folder that relative paths refer to.
    pub(super) folder: String,
    pub(super) variables: Vec<(String, String)>,
}

impl Definition {
    /// Returns the definition that runs this program with these flags of `mlx serve`.
    pub(super) fn of_this_program(serve: &[String], log: &Path) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| Error::io("the path of this program", error))?;
        let folder = std::env::current_dir().map_err(|error| Error::io("the current folder", error))?;
        let words = ["service", "run", "--log"].map(str::to_owned);
        let mut command = vec![text(program)?];
        command.extend(words);
        command.extend([text(log.to_owned())?, "--".to_owned()]);
        command.extend(serve.iter().cloned());
        let definition = Self { command, folder: text(folder)?, variables: variables() };
        definition.check()?;
        Ok(definition)
    }

    /// Rejects characters that no service file can hold.
    fn check(&self) -> Result<(), Failure> {
        let values = self.variables.iter().map(|(_, value)| value);
        let all = self.command.iter().chain([&self.folder]).chain(values);
        match all.into_iter().find(|text| text.chars().any(char::is_control)) {
            None => Ok(()),
            Some(text) => Err(Failure::usage(
                "SERVE_FLAGS",
                format!("has {text:?}; control characters are not allowed"),
            )),
        }
    }
}

fn text(path: PathBuf) -> Result<String, Failure> {
    let text = path.into_os_string().into_string();
    text.map_err(|path| Failure::Usage(format!("{} is not UTF-8", path.display())))
}

/// Returns this process's environment variables for the service: [`VARIABLES`] and the variables of the server's flags, except MLX's
/// settings with the values that this program gives them.
fn variables() -> Vec<(String, String)> {
    let is_wanted = |name: &str, value: &str| {
        VARIABLES.contains(&name) || name.starts_with("MLX_") && !is_mlx_default(name, value)
    };
    let mut all: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| is_wanted(name, value))
        .collect();
    all.sort();
    all
}
