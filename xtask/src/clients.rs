//! `cargo xtask clients`: unmodified third-party clients against the server on a tiny checkpoint.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{python, setup, workspace};

/// Builds and starts the server, then runs every script of tests/clients.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let clients = root.join("tests/clients");
    let environment = root.join("target/clients-venv");
    let python = python::with_packages(&environment, &clients.join("requirements.txt"))?;
    let mut build = workspace::cargo();
    build.args(["build", "--package", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the server does not build");
    let mut server = Command::new(root.join("target/debug/mlx-server"));
    server.args(["--port", "0", "-m"]).arg(root.join("tests/golden/models/llama-f32"));
    let mut server = Server(server.stderr(Stdio::piped()).spawn().context("the server does not start")?);
    let base = server.base()?;
    let mut scripts = Vec::new();
    for entry in clients.read_dir()? {
        let path = entry?.path();
        scripts.extend(path.extension().is_some_and(|end| end == "py").then_some(path));
    }
    scripts.sort();
    for script in &scripts {
        let status = Command::new(&python).arg(script).arg(&base).status()?;
        ensure!(status.success(), "{} failed", script.display());
    }
    Ok(())
}

/// The server process, killed on drop.
struct Server(Child);

impl Server {
    /// The address that it listens on, read from the first lines of its log.
    fn base(&mut self) -> Result<String> {
        let mut log = BufReader::new(self.0.stderr.take().context("the log is piped")?);
        let mut line = String::new();
        while log.read_line(&mut line)? > 0 {
            if let Some((_, address)) = line.split_once("\"address\":\"") {
                let base = format!("http://{}", address.split('"').next().unwrap_or_default());
                // Read to the end, so that the server does not block on a full pipe.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return Ok(base);
            }
            line.clear();
        }
        bail!("the server ended before it listened")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
