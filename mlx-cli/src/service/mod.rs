//! `mlx service`: the server as a service of the user, which starts at login and restarts after a failure. launchd runs it on macOS, systemd
//! elsewhere.

mod definition;
mod launchd;
mod log;
mod manager;
mod run;
mod systemd;

use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use mlx_server::config::Config;

use crate::exit_code::Failure;
use crate::serve::ServeCommand;
use crate::terminal;
use definition::Definition;
use log::LogFile;
use manager::{Manager, State};
use run::RunArgs;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx service install -- mlx-community/Qwen3-4B-4bit
  mlx service install -- --config ~/server.toml
  mlx service install --print -- MODEL      # shows the file and changes nothing
  mlx service status
  mlx service logs --follow";

/// The longest wait for the server to listen after the installation.
const START: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Start the server at login and now, and again after a failure; replaces an installed service
    Install(InstallArgs),
    /// Report whether the service is installed and running, its address and its log; the exit code is 0 if it runs
    Status,
    /// Print the last lines of the log
    Logs(LogsArgs),
    /// Stop the service and remove it; the log stays
    Uninstall,
    /// Run the server and write its output to a log file; only the service starts this
    #[command(hide = true)]
    Run(RunArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Print the service file and install nothing
    #[arg(long)]
    print: bool,

    /// The models and flags of `mlx serve`; paths are relative to the current folder
    #[arg(last = true, value_name = "SERVE_FLAGS")]
    serve: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Number of lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: usize,

    /// Print further lines as they are written, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

/// The command line of the service, to check it before it is installed.
#[derive(Parser)]
#[command(name = "mlx serve", no_binary_name = true, args_override_self = true)]
struct ServeLine {
    #[command(flatten)]
    command: ServeCommand,

    /// The flag of all commands
    #[arg(short = 'v', long = "verbose")]
    _verbose: bool,
}

/// Runs the command.
pub(crate) fn run(command: &ServiceCommand) -> Result<(), Failure> {
    match command {
        ServiceCommand::Install(args) => args.install(),
        ServiceCommand::Status => status(),
        ServiceCommand::Logs(LogsArgs { lines, follow }) => LogFile::default_one()?.show(*lines, *follow),
        ServiceCommand::Uninstall => uninstall(),
        ServiceCommand::Run(args) => args.run(),
    }
}

impl InstallArgs {
    fn install(&self) -> Result<(), Failure> {
        self.check()?;
        let (manager, log) = (Manager::of_this_machine(), LogFile::default_one()?);
        let definition = Definition::of_this_program(&self.serve, log.path())?;
        let text = manager.file_text(&definition);
        if self.print {
            return terminal::show(&text);
        }
        let file = manager.file()?;
        let before = log.len();
        if file.exists() {
            manager.stop();
        }
        mlx_files::write_privately(&file, text.as_bytes())?;
        if let Err(failure) = manager.start(&file) {
            manager.stop();
            std::fs::remove_file(&file).ok();
            return Err(failure);
        }
        terminal::note(&format!("installed {}", file.display()));
        terminal::note(&format!("the log is {}", log.path().display()));
        let begin = Instant::now();
        while begin.elapsed() < START {
            if let Some(address) = log.address_after(before) {
                terminal::note(&format!("the server listens at {address}"));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        terminal::note("the server does not listen yet; `mlx service logs` shows why");
        Ok(())
    }

    /// Checks the flags of the server, so that a mistake is reported now and not in the log.
    fn check(&self) -> Result<(), Failure> {
        let line = ServeLine::try_parse_from(&self.serve).map_err(|error| {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Failure::Usage(format!("SERVE_FLAGS: {}", text.lines().next().unwrap_or_default()))
        })?;
        let serve = line.command.flags();
        if serve.print_config {
            return Err(Failure::usage("--print-config", "prints and serves nothing; leave it out"));
        }
        if std::env::var_os("MLX_API_KEY").is_some() {
            let reason = "is set, and a service does not get it; give --api-key-file FILE after --";
            return Err(Failure::usage("MLX_API_KEY", reason));
        }
        Config::resolve(serve).map(drop).map_err(|error| Failure::Usage(error.to_string()))
    }
}

fn status() -> Result<(), Failure> {
    let (manager, log) = (Manager::of_this_machine(), LogFile::default_one()?);
    let file = manager.file()?;
    let state = if file.exists() { manager.state() } else { State::NotInstalled };
    let mut rows = vec![("state", state.text())];
    if file.exists() {
        rows.push(("file", file.display().to_string()));
    }
    if let Some(address) = log.last_address().filter(|_| state == State::Running) {
        rows.push(("address", address));
    }
    if log.path().exists() {
        rows.push(("log", log.path().display().to_string()));
    }
    for (name, value) in rows {
        terminal::show(&format!("{name:<8} {value}\n"))?;
    }
    if state == State::Running { Ok(()) } else { Err(Failure::Reported) }
}

fn uninstall() -> Result<(), Failure> {
    let manager = Manager::of_this_machine();
    let file = manager.file()?;
    if !file.exists() {
        terminal::note("the service is not installed");
        return Ok(());
    }
    manager.stop();
    std::fs::remove_file(&file).map_err(|error| mlx_core::Error::io(&file, error))?;
    manager.forget();
    terminal::note(&format!("removed {}", file.display()));
    Ok(())
}
