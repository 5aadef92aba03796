//! Measures one model in several processes over loopback: `ranks MODEL PROCESSES [pipeline|tensor]`. The load of `single`, and the memory of
//! each process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mlx_core::distributed::{Key, Parallel, Workers};
use mlx_core::engine::EngineOptions;
use mlx_core::{Error, Result};
use mlx_engine_process::Program;

use crate::figures::Figures;
use crate::load::{argument, engine_options};
use crate::single;

/// An `mlx worker` process, killed on drop.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start(program: &Path, model: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["worker", "--port", "0", "-m", model]).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::io(program, error))?;
        let lines = child.stderr.take().into_iter().flat_map(|output| BufReader::new(output).lines());
        let mut lines = lines.map_while(std::result::Result::ok);
        let address =
            lines.find_map(|line| Some(line.strip_prefix("listening on ")?.split(' ').next()?.to_owned()));
        // Drains the pipe, so that the worker never blocks on it.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.ok_or_else(|| Error::request("mlx worker", "ended before it listened"))?;
        Ok(Self { child, address })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let model: String = argument(arguments, 0, "MODEL")?;
    let processes: usize = argument(arguments, 1, "PROCESSES")?;
    let parallel = match arguments.get(2) {
        None => Parallel::default(),
        Some(_) => argument(arguments, 2, "pipeline or tensor")?,
    };
    let own = std::env::current_exe().map_err(|error| Error::request("ranks", error.to_string()))?;
    let path = own.with_file_name("mlx");
    let workers = (1..processes).map(|_| Worker::start(&path, &model)).collect::<Result<Vec<_>>>()?;
    let addresses: Vec<String> = workers.iter().map(|worker| worker.address.clone()).collect();
    let workers_of =
        (!addresses.is_empty()).then(|| Workers { parallel, ..Workers::new(addresses, Key::default()) });
    let program = Program { path, arguments: vec!["engine".into()], environment: Vec::new() };
    let options = EngineOptions { workers: workers_of, ..engine_options() };
    let engine = mlx_engine_process::start(&program, Path::new(&model), &options, |_, _| {})?;
    let mut figures = single::figures(&engine)?;
    let parents = workers.iter().map(|worker| worker.child.id());
    // The engine is this process's last child.
    let ranks = std::iter::once(std::process::id()).chain(parents).filter_map(last_child_of);
    for (rank, megabytes) in ranks.map(peak).enumerate() {
        if let Some(megabytes) = megabytes {
            figures.add(format!("rank {rank}, peak MB"), megabytes);
        }
    }
    Ok(figures)
}

/// Returns the last child of a process. A worker has one, which holds its share.
fn last_child_of(process: u32) -> Option<u32> {
    let listed = Command::new("pgrep").args(["-P", &process.to_string()]).output().ok()?.stdout;
    String::from_utf8_lossy(&listed).lines().last()?.parse().ok()
}

/// Returns the peak memory of a process in megabytes, if the system reports it.
fn peak(process: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}
