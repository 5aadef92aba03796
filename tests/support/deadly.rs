//! A server whose engine runs in a child process that a test kills.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::model_copy;
use crate::server::Server;

/// A server with a tiny model in a child process.
pub struct Deadly {
    /// The server.
    pub server: Server,
    /// The file that names the child's next fault.
    pub fault: PathBuf,
    /// The model.
    pub model: TempDir,
    _faults: TempDir,
}

impl Deadly {
    /// Starts `program` and waits until its model is loaded. The model has a long context. A step may take a second.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let model = model_copy("llama-f32");
        let path = model.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        config["max_position_embeddings"] = 8192.into();
        std::fs::write(&path, config.to_string()).expect("it can be written");
        Self::start_on(program, model, arguments)
    }

    /// Like [`Self::start`], with this model.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start_on(program: &str, model: TempDir, arguments: &[&str]) -> Self {
        let faults = tempfile::tempdir().expect("a temporary folder");
        let fault = faults.path().join("fault");
        let variable = format!("MLX_ENGINE_FAULT_FILE={}", fault.display());
        let program = ["env", &variable, "MLX_ENGINE_DEADLINE_MS=1000", program];
        let server = Server::start_on(&program, model.path(), &[arguments, &["--preload"]].concat());
        let deadly = Self { server, fault, model, _faults: faults };
        deadly.wait_until("the model is loaded", || deadly.server.get("/ready").status == 200);
        deadly
    }

    /// Returns the id of the only child, once there is one.
    ///
    /// # Panics
    /// If there is none within a minute.
    pub fn child(&self) -> u32 {
        let found = Cell::new(0);
        self.wait_until("one child runs", || match self.server.children()[..] {
            [child] => {
                found.set(child);
                true
            }
            _ => false,
        });
        found.get()
    }

    /// Sends a signal to the child.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let id = self.child().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill runs").success());
    }

    /// Has the child take a fault before its next step.
    ///
    /// # Panics
    /// If it has not done so within a minute.
    pub fn fault(&self, kind: &str) {
        let new = self.fault.with_extension("new");
        std::fs::write(&new, kind).expect("it can be written");
        std::fs::rename(&new, &self.fault).expect("it can be renamed");
        self.wait_until(kind, || !self.fault.exists());
    }

    /// Returns the number of deaths.
    pub fn restarts(&self) -> u64 {
        let page = self.server.metrics();
        let lines = page.lines().filter(|line| line.starts_with("mlx_engine_restarts_total{"));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    /// Waits until `condition` is true.
    ///
    /// # Panics
    /// After a minute, with the log of the server.
    pub fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        wait_until(condition, || format!("{what}: {}", self.server.log()));
    }
}

/// Waits until `condition` is true.
///
/// # Panics
/// After a minute, with the text of `about`.
pub fn wait_until(condition: impl Fn() -> bool, about: impl Fn() -> String) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_mins(1), "{}", about());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a process exists.
///
/// # Panics
/// If `kill` does not run.
pub fn exists(process: u32) -> bool {
    let alive = Command::new("kill").args(["-0", &process.to_string()]).output().expect("kill runs");
    alive.status.success()
}

/// Returns true if the system enforces limits on memory. A Mac does not.
pub fn has_memory_limits() -> bool {
    Path::new("/proc/self").exists()
}
