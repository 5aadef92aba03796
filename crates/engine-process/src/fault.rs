//! A test hook: faults of a child on demand. It is off unless the environment names a file.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The environment variable that names a file. Before each step, the child removes this file if it exists, and has the fault that it names:
/// `wedge`, `abort`, `exit`, `garbage` or `memory`. After `abort 3`, the next two children have the fault, too. Only for tests.
pub const FAULT_FILE: &str = "MLX_ENGINE_FAULT_FILE";

/// The faults of this process.
pub(crate) struct Faults(Option<PathBuf>);

impl Faults {
    /// Reads the environment.
    pub(crate) fn from_environment() -> Self {
        Self(std::env::var_os(FAULT_FILE).map(PathBuf::from))
    }

    /// Has the requested fault, if there is one. Calls `garbage` to send bytes that are no message.
    pub(crate) fn occur(&self, garbage: impl FnOnce()) {
        let Some(path) = &self.0 else { return };
        let Ok(kind) = std::fs::read_to_string(path) else { return };
        // If two children share the file, only one of them has the fault.
        if std::fs::remove_file(path).is_err() {
            return;
        }
        let (kind, count) = kind.trim().split_once(' ').unwrap_or((kind.trim(), "1"));
        if let Some(left) =
            count.parse::<u32>().ok().and_then(|count| count.checked_sub(1)).filter(|left| *left > 0)
        {
            std::fs::write(path, format!("{kind} {left}")).ok();
        }
        match kind {
            "wedge" => loop {
                std::thread::sleep(Duration::from_mins(1));
            },
            "abort" => std::process::abort(),
            "exit" => std::process::exit(3),
            "garbage" => garbage(),
            "memory" => exceed_memory(),
            _ => {}
        }
    }
}

/// Allocates more memory than a limit allows.
fn exceed_memory() {
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    if setrlimit(Resource::As, Rlimit { current: Some(1 << 20), maximum }).is_ok() {
        drop(std::hint::black_box(vec![1_u8; 1 << 30]));
    }
}
