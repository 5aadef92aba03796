//! Files of MCP servers for tests. The servers are `tests/mcp/server.py`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

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

/// Returns a folder with the file `mcp.json`. Each server has a label and the flags of the script.
///
/// # Panics
/// If the file cannot be written.
pub fn folder(servers: &[(&str, &[&str])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let entry = |flags: &[&str]| {
        let args: Vec<&str> = [script].into_iter().chain(flags.iter().copied()).collect();
        json!({"command": "python3", "args": args, "cwd": folder.path()})
    };
    let servers: serde_json::Map<_, _> =
        servers.iter().map(|(label, flags)| ((*label).to_owned(), entry(flags))).collect();
    let file = json!({"mcpServers": servers}).to_string();
    std::fs::write(folder.path().join("mcp.json"), file).expect("it can be written");
    folder
}
