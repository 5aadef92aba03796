//! `mlx service run`: runs the server and writes its output, and that of its engines, to the log file.

use std::io::{ErrorKind, Read, pipe};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use clap::Args;
use mlx_core::Error;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::log::RotatingLog;
use crate::exit_code::Failure;

/// The longest wait for the last lines after the server has ended.
const LAST_LINES: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The log file
    #[arg(long, value_name = "FILE")]
    log: PathBuf,

    /// The models and flags of `mlx serve`
    #[arg(last = true, value_name = "SERVE_FLAGS", allow_hyphen_values = true)]
    serve: Vec<String>,
}

impl RunArgs {
    /// Runs the server until it ends. The exit code is that of the server, so that the service manager starts it again after a failure.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let about = |error| Error::io("mlx serve", error);
        let mut log = RotatingLog::open(&self.log)?;
        let (mut output, input) = pipe().map_err(about)?;
        let program = std::env::current_exe().map_err(about)?;
        let mut command = Command::new(program);
        command.arg("serve").args(&self.serve).stdin(Stdio::null());
        command.stdout(input.try_clone().map_err(about)?).stderr(input);
        let mut server = command.spawn().map_err(about)?;
        // It holds ends of the pipe.
        drop(command);
        pass_on_requests_to_end(Pid::from_child(&server));
        let (ended, end) = channel::<()>();
        thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            loop {
                match output.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(count) => log.append(&bytes[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            drop(ended);
        });
        let status = server.wait().map_err(about)?;
        // The thread sends nothing: its end is the message.
        end.recv_timeout(LAST_LINES).ok();
        if status.success() { Ok(()) } else { Err(Failure::Reported) }
    }
}

/// Sends the server a request to end whenever this process gets one.
fn pass_on_requests_to_end(server: Pid) {
    let wait = move || {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut requests) = signal(SignalKind::terminate()) else { return };
            while requests.recv().await.is_some() {
                kill_process(server, Signal::TERM).ok();
            }
        });
    };
    thread::spawn(wait);
}
