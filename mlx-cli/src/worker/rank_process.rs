//! Starts the process that works for one rank 0, and ends it if it is silent.

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use mlx_core::distributed::{Admitted, WorkerEvent};
use mlx_engine_process::{GroupFile, Program};

/// The minimum time without a line after which the process counts as stuck. A process needs some time to start.
const SILENCE: Duration = Duration::from_secs(5);

/// Runs a rank of the model in `folder` with these flags in a child process until rank 0 has left. Returns the reason.
pub(super) fn run(
    folder: &Path,
    flags: &[String],
    admitted: Admitted,
    on_event: &mut dyn FnMut(WorkerEvent),
) -> io::Result<String> {
    let Admitted { stream, from, rank, heartbeat_timeout, group } = admitted;
    let file = GroupFile::new()?;
    stream.set_nonblocking(false)?;
    let timeout = heartbeat_timeout.as_millis().to_string();
    let mut command = Program::this(&["rank"])?.command();
    command.arg(folder).args(["--from", &from, "--heartbeat-timeout", &timeout]).args(flags);
    command.envs(file.environment(&group, rank)).args(["--rank", &rank.to_string()]);
    let mut child = command.stdin(Stdio::from(OwnedFd::from(stream))).stdout(Stdio::piped()).spawn()?;
    // The command has a copy of the connection.
    drop(command);
    let (sender, lines) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    let silence = heartbeat_timeout.max(SILENCE);
    let reason = loop {
        match lines.recv_timeout(silence).as_deref().map(serde_json::from_str) {
            Ok(Ok(WorkerEvent::Left { reason })) => break Some(reason),
            Ok(Ok(event)) => on_event(event),
            // A heartbeat.
            Ok(Err(_)) => {}
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = silence.as_secs_f64();
                break Some(format!("{from} waits for a process that was silent for {seconds:.1} s"));
            }
        }
    };
    child.kill().ok();
    let status = child.wait()?;
    Ok(reason.unwrap_or_else(|| format!("the process of this rank ended with {status}")))
}
