//! Models divided among processes of this machine: `mlx worker`, and an engine in a process of its own.

use std::path::Path;
use std::time::Duration;

use mlx_core::Result;
use mlx_core::backend::DEVICE;
use mlx_core::distributed::{Key, Parallel, Workers};
use mlx_core::engine::{Engine, EngineOptions};
use mlx_engine_process::Program;

use crate::worker_process::WorkerProcess;

/// Starts this many workers for the model in a folder.
///
/// # Panics
/// If one does not listen.
pub fn several(mlx: &str, folder: &Path, count: usize) -> Vec<WorkerProcess> {
    let flags = ["--port", "0", "--device", "cpu"];
    (0..count).map(|_| WorkerProcess::start_with(mlx, folder, &flags)).collect()
}

/// Returns the engine option for these workers, without a key.
pub fn workers(of: &[WorkerProcess], parallel: Parallel) -> Workers {
    let addresses = of.iter().map(|worker| format!("127.0.0.1:{}", worker.port)).collect();
    Workers {
        parallel,
        // No machine fails in these tests, but all may be stopped together.
        heartbeat_timeout: Duration::from_mins(10),
        connect_timeout: Duration::from_secs(10),
        ..Workers::new(addresses, Key::default())
    }
}

/// Starts an engine on the CPU with workers.
pub fn try_start(mlx: &str, folder: &Path, workers: Workers, options: &EngineOptions) -> Result<Engine> {
    let program = Program {
        path: mlx.into(),
        arguments: vec!["engine".into()],
        environment: vec![(DEVICE.into(), "cpu".into())],
    };
    let options = EngineOptions { workers: Some(workers), ..options.clone() };
    mlx_engine_process::start(&program, folder, &options, |_, _| {})
}

/// Starts an engine on the CPU with workers.
///
/// # Panics
/// If the model does not load.
pub fn start(
    mlx: &str,
    folder: &Path,
    of: &[WorkerProcess],
    parallel: Parallel,
    options: &EngineOptions,
) -> Engine {
    try_start(mlx, folder, workers(of, parallel), options)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}
