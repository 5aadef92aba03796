//! Measures the group of the ranks in MLX in a child process, since a process joins a group once and may wait in it for ever.

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Duration;

use mlx_core::backend::DEVICE;
use mlx_core::distributed::{GroupSpeed, GroupStart, Workers, measure_group};
use mlx_core::{Error, Result};
use mlx_engine_process::{GroupFile, Program, end_with_parent};
use mlx_options::DeviceArgs;

use crate::exit_code::Failure;
use crate::terminal;

/// The time limit of a measurement.
const LIMIT: Duration = Duration::from_mins(1);

/// Measures the group of this machine and the workers.
pub(super) fn measure(workers: &Workers, device: DeviceArgs) -> std::result::Result<GroupSpeed, Failure> {
    let start = GroupStart::new(workers)?;
    let cannot = |error: std::io::Error| {
        Error::Distributed(format!("the process that measures the group could not run: {error}"))
    };
    let file = GroupFile::new().map_err(cannot)?;
    let mut command = Program::this(&["cluster", "measure"]).map_err(cannot)?.command();
    command.envs(file.environment(&start, 0)).envs(device.device.map(|kind| (DEVICE, kind.to_string())));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let request = serde_json::to_vec(workers).map_err(|error| Error::Internal(error.to_string()))?;
    // A process that has failed has printed the reason.
    child.stdin.take().map(|mut input| input.write_all(&request));
    let (sender, answers) = channel();
    if let Some(mut output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).ok();
            sender.send(text).ok();
        });
    }
    let answer = answers.recv_timeout(LIMIT);
    child.kill().ok();
    child.wait().map_err(cannot)?;
    let text = answer.map_err(|_| {
        let (backend, seconds) = (workers.backend, LIMIT.as_secs());
        Error::Distributed(format!(
            "the machines did not exchange arrays over {backend} within {seconds} s; check that each reaches the next one"
        ))
    })?;
    serde_json::from_str(&text).map_err(|_| Failure::Reported)
}

/// Runs in the child process: reads the workers from standard input and prints the measured speed.
pub(super) fn run_child() -> std::result::Result<(), Failure> {
    end_with_parent();
    let workers = read_workers()?;
    let speed = serde_json::to_string(&measure_group(&workers)?);
    terminal::show(&speed.map_err(|error| Error::Internal(error.to_string()))?)
}

fn read_workers() -> Result<Workers> {
    let cannot = |error| Error::Distributed(format!("this command is only for `mlx cluster check`: {error}"));
    serde_json::from_reader(std::io::stdin()).map_err(cannot)
}
