//! `mlx serve`: runs the HTTP server, like the program `mlx-server`.

use std::path::Path;

use clap::Args;
use mlx_server::args::{LogFormat, ServeArgs};
use mlx_server::config::Config;

use crate::completion::model_completer;
use crate::exit_code::Failure;
use crate::{default_file, model_choice, terminal};

/// The server's flags, with models as arguments.
#[derive(Debug, Args)]
pub(crate) struct ServeCommand {
    /// The models, in the format of -m; the first one is the default for requests
    #[arg(value_name = "[NAME=]MODEL", add = model_completer())]
    models: Vec<String>,

    #[command(flatten)]
    serve: ServeArgs,
}

impl ServeCommand {
    /// Returns the flags of the server.
    pub(crate) fn flags(&self) -> &ServeArgs {
        &self.serve
    }
}

/// Runs the command. If it is `verbose`, the log also has polls.
pub(crate) fn run(args: &ServeCommand, verbose: bool) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        terminal::note(&format!("error: {error}"));
        Failure::Reported
    };
    let mut config = Config::resolve(&args.serve).map_err(|error| failed(&error))?;
    let given = &mut config.models.model;
    if !args.models.is_empty() {
        // Models named as arguments override MLX_MODEL and precede those of -m.
        if std::env::var("MLX_MODEL").is_ok_and(|name| *given == [name]) {
            given.clear();
        }
        given.splice(..0, args.models.iter().cloned());
    }
    if given.is_empty() {
        given.extend(default_file::read()?.and_then(|name| name.into_os_string().into_string().ok()));
    }
    if config.models.profiles.is_none() {
        config.models.profiles = default_file::profiles().ok().filter(|path| path.exists());
    }
    if !args.serve.print_config {
        given.iter().try_for_each(|model| offer_download(model))?;
    }
    match mlx_server::run(config, &args.serve, verbose) {
        Ok(text) => Ok(terminal::show(&text.unwrap_or_default())?),
        Err(error) => Err(failed(&error)),
    }
}

/// Runs the engine of a server in this process.
pub(crate) fn run_engine(log: LogFormat) -> Result<(), Failure> {
    mlx_server::run_engine(log).map_err(|error| {
        terminal::note(&format!("error: {error}"));
        Failure::Reported
    })
}

/// Offers to download a missing model; the server reports all other errors.
fn offer_download(given: &str) -> Result<(), Failure> {
    let model = Path::new(given.split_once('=').map_or(given, |(_, model)| model));
    let is_missing = matches!(mlx_hub::resolve(model), Err(mlx_hub::Error::NotDownloaded { .. }));
    if is_missing && terminal::can_ask() && !model_choice::is_guide(model) {
        model_choice::resolve(model)?;
    }
    Ok(())
}
