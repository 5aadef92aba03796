//! `mlx worker` as a child process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::deadly::wait_until;
use crate::skipped::needed;

/// A running `mlx worker`, ended on drop.
pub struct WorkerProcess {
    child: Child,
    /// The port on which it listens.
    pub port: String,
}

impl WorkerProcess {
    /// Starts a worker with this program on a loopback port; 0 picks a free one. The key is in the folder of its model, if it has one.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn start(program: &str, folder: &Path, port: &str) -> Self {
        Self::start_with(program, folder, &["--port", port])
    }

    /// Starts a worker with more flags.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn start_with(program: &str, folder: &Path, flags: &[&str]) -> Self {
        let (mut command, key) = (Command::new(program), folder.join("key"));
        command.arg("worker").args(flags);
        if key.exists() {
            command.arg("--worker-key-file").arg(key);
        }
        command.arg("-m").arg(folder).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let first = lines.next().expect("a line").expect("text");
        let port = first
            .strip_prefix("listening on 127.0.0.1:")
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap_or_else(|| panic!("{first}"))
            .to_owned();
        // Read the output to its end, so that a full pipe does not block the worker.
        thread::spawn(move || lines.for_each(drop));
        Self { child, port }
    }

    /// Sends a signal to the process that works for rank 0.
    ///
    /// # Panics
    /// If there is none, or no such signal.
    pub fn signal_rank(&self, name: &str) {
        let rank = self.ranks().first().copied().expect("it works for a rank 0").to_string();
        assert!(Command::new("kill").args(["-s", name, &rank]).status().expect("kill runs").success());
    }

    /// Returns the ids of the processes that work for a rank 0.
    fn ranks(&self) -> Vec<u32> {
        let listed = Command::new("pgrep").args(["-P", &self.child.id().to_string()]).output();
        let listed = listed.expect("pgrep runs").stdout;
        String::from_utf8_lossy(&listed).lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If there is no such signal.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill runs").success());
    }

    /// Returns the bytes that it has read from files, once it works for no rank 0. Checks of it are skipped without /proc.
    pub fn bytes_read(&self) -> Option<u64> {
        wait_until(|| self.ranks().is_empty(), || "it still works for a rank 0".to_owned());
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.child.id())).ok();
        let text = needed(text, "/proc/PID/io")?;
        let bytes = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        needed(bytes.and_then(|bytes| bytes.parse().ok()), "rchar in /proc/PID/io")
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
