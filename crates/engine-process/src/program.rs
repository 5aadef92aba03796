//! The program that runs an engine.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The command that calls [`run`](crate::run()).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The executable file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Additional environment variables.
    pub environment: Vec<(OsString, OsString)>,
}

impl Program {
    /// Returns this program, with other arguments.
    pub fn this(arguments: &[&str]) -> io::Result<Self> {
        // On Linux, the path may name a newer file by now, or none.
        let same = PathBuf::from("/proc/self/exe");
        let path = if same.exists() { same } else { std::env::current_exe()? };
        let arguments = arguments.iter().map(OsString::from).collect();
        Ok(Self { path, arguments, environment: Vec::new() })
    }

    /// Returns the command that runs the program. It is in a process group of its own: an interrupt from the terminal is for its parent.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0("mlx").args(&self.arguments).envs(self.environment.iter().cloned()).process_group(0);
        command
    }

    /// Starts the program with more environment variables, and with one end of a socket pair as its standard input. Returns the other end.
    pub(crate) fn spawn(
        &self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<(Child, UnixStream)> {
        let (own, other) = UnixStream::pair()?;
        let stdin = Stdio::from(OwnedFd::from(other));
        let child = self.command().envs(environment).stdin(stdin).stdout(Stdio::null()).spawn()?;
        Ok((child, own))
    }
}
