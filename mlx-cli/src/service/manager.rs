//! The service managers: launchd and systemd, through their command-line programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use mlx_core::Error;
use mlx_hub::path_in;
use rustix::process::getuid;

use super::definition::{Definition, STOP_SECONDS};
use super::launchd::{LABEL, agent};
use super::systemd::{UNIT, unit};
use crate::exit_code::Failure;

/// A service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manager {
    Launchd,
    Systemd,
}

/// The state of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    NotInstalled,
    Running,
    /// Not running, in the words of the service manager.
    Stopped(String),
}

impl State {
    /// Returns the state for a person.
    pub(super) fn text(&self) -> String {
        match self {
            Self::NotInstalled => "not installed".to_owned(),
            Self::Running => "running".to_owned(),
            Self::Stopped(words) => format!("installed, not running ({words})"),
        }
    }
}

impl Manager {
    pub(super) fn of_this_machine() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }

    /// Returns the place of the service file.
    pub(super) fn file(self) -> Result<PathBuf, Failure> {
        let home = || {
            std::env::home_dir()
                .ok_or_else(|| Error::environment("HOME", "is not set, so there is no folder for services"))
        };
        Ok(match self {
            Self::Launchd => home()?.join("Library/LaunchAgents").join(format!("{LABEL}.plist")),
            Self::Systemd => {
                let config = path_in("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
                let config = config.map_or_else(|| Ok::<_, Error>(home()?.join(".config")), Ok)?;
                config.join("systemd/user").join(UNIT)
            }
        })
    }

    /// Returns the text of the service file.
    pub(super) fn file_text(self, definition: &Definition) -> String {
        match self {
            Self::Launchd => agent(definition),
            Self::Systemd => unit(definition),
        }
    }

    /// Starts the service now and at each login. Its file exists.
    pub(super) fn start(self, file: &Path) -> Result<(), Failure> {
        match self {
            Self::Launchd => run("launchctl", &["bootstrap", &session(), &file.to_string_lossy()]),
            Self::Systemd => {
                self.forget();
                run("systemctl", &["--user", "enable", UNIT])?;
                run("systemctl", &["--user", "restart", UNIT])
            }
        }
    }

    /// Stops the service, now and for later logins. Does nothing if it does not run.
    pub(super) fn stop(self) {
        match self {
            Self::Launchd => {
                run("launchctl", &["bootout", &service()]).ok();
                // launchd refuses to start a service that is still ending.
                let begin = Instant::now();
                let longest = Duration::from_secs(u64::from(STOP_SECONDS) + 5);
                while begin.elapsed() < longest && self.state() != not_loaded() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            Self::Systemd => {
                // The link for the login is removed even if no session of systemd runs.
                run("systemctl", &["--user", "disable", UNIT]).ok();
                run("systemctl", &["--user", "stop", UNIT]).ok();
            }
        }
    }

    /// Makes the manager read its files again.
    pub(super) fn forget(self) {
        if self == Self::Systemd {
            run("systemctl", &["--user", "daemon-reload"]).ok();
        }
    }

    /// Returns the state of an installed service.
    pub(super) fn state(self) -> State {
        let words = match self {
            Self::Launchd => output("launchctl", &["print", &service()]).ok().and_then(|output| {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.lines().find_map(|line| line.trim().strip_prefix("state = ").map(str::to_owned))
            }),
            Self::Systemd => output("systemctl", &["--user", "is-active", UNIT])
                .ok()
                .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        };
        match words.filter(|words| !words.is_empty()) {
            None => not_loaded(),
            Some(words) if ["running", "active"].contains(&words.as_str()) => State::Running,
            Some(words) => State::Stopped(words),
        }
    }
}

fn not_loaded() -> State {
    State::Stopped("the service manager does not know it".to_owned())
}

/// Returns the session of the user in launchd.
fn session() -> String {
    format!("gui/{}", getuid().as_raw())
}

/// Returns the name of the service in launchd.
fn service() -> String {
    format!("{}/{LABEL}", session())
}

fn output(program: &str, arguments: &[&str]) -> Result<Output, Failure> {
    let output = Command::new(program).args(arguments).output();
    Ok(output.map_err(|error| Error::io(program, error))?)
}

/// Runs a command. A failure has its error message.
fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let output = output(program, arguments)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().next().unwrap_or("it failed without a message").to_owned();
    let fix = if said.contains("connect to bus") {
        "; services need a session of systemd: log in directly or over SSH, not with su, or run `mlx serve` another way"
    } else {
        ""
    };
    Err(Failure::Usage(format!("{program} {}: {said}{fix}", arguments.join(" "))))
}
