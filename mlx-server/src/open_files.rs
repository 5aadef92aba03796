//! The limit of open files: every connection is one. macOS starts programs with 256.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files besides connections: models, caches, libraries.
const OTHERS: u64 = 256;

/// Raises the limit so that it suffices for so many connections.
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
