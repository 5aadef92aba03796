//! Raises the limit of open files. Every connection is an open file, and macOS starts programs with a limit of 256.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files besides connections: models, caches, libraries.
const OTHERS: u64 = 256;

/// Raises the limit for this number of connections. Logs a warning if the system does not allow it.
pub(crate) fn raise_limit(connections: usize) {
    let wanted = connections as u64 + OTHERS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).is_ok();
    if !raised || allowed < wanted {
        tracing::warn!(
            wanted,
            maximum,
            "--max-connections needs more open files than the system allows; see `ulimit -n`"
        );
    }
}
