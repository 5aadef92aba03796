//! Checks that cannot run on this machine. Each is printed and counted, so that a run does not look more complete than it was.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file in which `cargo xtask test` counts skipped checks.
const LIST: &str = "MLX_SKIPPED_CHECKS";

/// Returns the value that a check needs, or skips the check if there is none.
pub fn needed<T>(value: Option<T>, needs: &str) -> Option<T> {
    if value.is_none() {
        skip(needs);
    }
    value
}

/// Returns true if a check can run, or skips it.
pub fn possible(is_possible: bool, needs: &str) -> bool {
    needed(is_possible.then_some(()), needs).is_some()
}

/// Writes to stderr directly, because the test runner captures `eprintln!` of passing tests.
fn skip(needs: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: needs {needs}\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).ok();
    if let Some(path) = std::env::var_os(LIST) {
        let list = OpenOptions::new().create(true).append(true).open(path);
        list.and_then(|mut list| list.write_all(line.as_bytes())).ok();
    }
}
