//! Files of MCP servers for tests. The servers are `tests/mcp/server.py`.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");

/// Waits until the server of a folder, which wrote its id to the file `pid`, has ended.
///
/// # Panics
/// If it still runs after a minute.
pub fn assert_server_ends(folder: &Path) {
    let id = std::fs::read_to_string(folder.join("pid")).expect("it was started");
    let state = || {
        let listed = Command::new("ps").args(["-o", "stat=", "-p", &id]).output().expect("ps runs").stdout;
        String::from_utf8_lossy(&listed).trim().to_owned()
    };
    let begun = Instant::now();
    // A process that nobody has waited for yet is a zombie.
    while !state().is_empty() && !state().starts_with('Z') {
        assert!(begun.elapsed() < Duration::from_mins(1), "the server still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An MCP server over HTTP, ended on drop.
pub struct HttpServer(Child, u16);

impl HttpServer {
    /// Starts a server that requires this bearer token.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(token: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("port");
        let mut command = Command::new("python3");
        command.arg(SCRIPT).arg("--http").arg(&file).args(["--token", token]).args(flags);
        let mut server = Self(command.spawn().expect("it starts"), 0);
        let begun = Instant::now();
        while !file.exists() {
            assert!(begun.elapsed() < Duration::from_mins(1), "the server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.1 = std::fs::read_to_string(&file).expect("a port").parse().expect("a port");
        server
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.1
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns a folder with the file `mcp.json`. Each server has a label and the flags of the script.
///
/// # Panics
/// If the file cannot be written.
pub fn folder(servers: &[(&str, &[&str])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let entry = |flags: &[&str]| {
        let args: Vec<&str> = [SCRIPT].into_iter().chain(flags.iter().copied()).collect();
        json!({"command": "python3", "args": args, "cwd": folder.path()})
    };
    let servers: serde_json::Map<_, _> =
        servers.iter().map(|(label, flags)| ((*label).to_owned(), entry(flags))).collect();
    let file = json!({"mcpServers": servers}).to_string();
    std::fs::write(folder.path().join("mcp.json"), file).expect("it can be written");
    folder
}
