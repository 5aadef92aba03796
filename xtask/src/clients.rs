//! `cargo xtask clients`: unmodified third-party clients against the server, with a tiny checkpoint or scripted models.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::output;
use crate::{python, setup, workspace};

/// The name prefix of files that scripts import.
const PART: &str = "scripted_";

const INSTALL_NODE: &str = "install Node.js with npm (on Debian or Ubuntu: `apt install npm`)";

/// Builds and starts the server, then runs every script of tests/clients with the server's address. `MLX_SERVER` has the path of the program,
/// for scripts that start their own servers. `NODE_MODULES` has the path of npm packages.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    let root = workspace::root()?;
    let clients = root.join("tests/clients");
    let environment = root.join("target/clients-venv");
    let python = python::with_packages(&environment, &clients.join("requirements.txt"))?;
    let node = root.join("target/clients-node");
    install_npm(&clients, &node)?;
    let mut build = workspace::cargo();
    // Without --package, the features are the same as in the tests, so nothing is compiled twice.
    build.args(["build", "--bin", "mlx-server"]).current_dir(&root);
    ensure!(build.status()?.success(), "the server does not build");
    let program = root.join("target/debug/mlx-server");
    let mut server = Command::new(&program);
    server.args(["--port", "0", "-m"]).arg(root.join("tests/golden/models/llama-f32"));
    let mut server = Server(server.stderr(Stdio::piped()).spawn().context("the server does not start")?);
    let base = server.base()?;
    let mut scripts = Vec::new();
    for entry in clients.read_dir()? {
        let path = entry?.path();
        let is_part = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PART));
        let is_script = path.extension().is_some_and(|end| end == "py") && !is_part;
        scripts.extend(is_script.then_some(path));
    }
    scripts.sort();
    for script in &scripts {
        let mut client = Command::new(&python);
        client
            .arg(script)
            .arg(&base)
            .env("MLX_SERVER", &program)
            .env("NODE_MODULES", node.join("node_modules"));
        ensure!(client.status()?.success(), "{} failed", script.display());
    }
    Ok(())
}

/// Installs the packages of package.json, without running their scripts.
fn install_npm(clients: &Path, node: &Path) -> Result<()> {
    std::fs::create_dir_all(node)?;
    std::fs::copy(clients.join("package.json"), node.join("package.json"))?;
    let mut install = Command::new("npm");
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]).arg(node);
    output(&mut install, INSTALL_NODE).map(drop)
}

/// The server process, killed on drop.
struct Server(Child);

impl Server {
    /// Returns the server's address, read from the first lines of its log.
    fn base(&mut self) -> Result<String> {
        let mut log = BufReader::new(self.0.stderr.take().context("the log is piped")?);
        let mut line = String::new();
        while log.read_line(&mut line)? > 0 {
            if let Some((_, address)) = line.split_once("\"address\":\"") {
                let base = format!("http://{}", address.split('"').next().unwrap_or_default());
                // Drains the pipe, so that the server never blocks on it.
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return Ok(base);
            }
            line.clear();
        }
        bail!("the server exited before it listened")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
