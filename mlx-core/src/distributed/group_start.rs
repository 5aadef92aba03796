//! The start of a group: the backend, and the environment that each rank's process must have from its start.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::group_backend::GroupBackend;
use super::workers::Workers;
use crate::error::{Error, Result};

/// The variable with this process's rank in its group.
pub(super) const RANK: &str = "MLX_RANK";

/// The variables with the address of rank 0.
const JACCL_COORDINATOR: &str = "MLX_JACCL_COORDINATOR";
const NCCL_ADDRESS: [&str; 2] = ["NCCL_HOST_IP", "NCCL_PORT"];

/// The start of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStart {
    /// The backend, but not `auto`.
    pub backend: GroupBackend,
    /// The number of ranks.
    pub ranks: usize,
    /// The address of rank 0 at which the ranks meet, if the backend has one.
    pub coordinator: Option<SocketAddr>,
}

impl GroupStart {
    /// Returns the start of a group with these workers, whose backend is [resolved](Workers::resolved). Picks a free port of this machine if
    /// the backend needs one.
    pub fn new(workers: &Workers) -> Result<Self> {
        let (backend, ranks) = (workers.backend, workers.addresses.len() + 1);
        let mut coordinator = None;
        if backend.needs_coordinator() {
            let ip = workers.own_address.ok_or_else(|| backend.no_address())?;
            let port = TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr());
            coordinator = Some(port.map_err(|error| {
                let message = format!("{ip}, the first host of the hosts file, is not this machine: {error}");
                Error::Distributed(message)
            })?);
        }
        Ok(Self { backend, ranks, coordinator })
    }

    /// Returns the start of this process's group, if this process is rank 0.
    pub(super) fn of_this_process(workers: &Workers) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let coordinator = match workers.backend {
            GroupBackend::Jaccl => variable(JACCL_COORDINATOR),
            GroupBackend::Nccl => {
                let [ip, port] = NCCL_ADDRESS.map(variable);
                ip.zip(port).map(|(ip, port)| format!("{ip}:{port}"))
            }
            _ => None,
        };
        Self {
            backend: workers.backend,
            ranks: workers.addresses.len() + 1,
            coordinator: coordinator.and_then(|address| address.parse().ok()),
        }
    }

    /// Returns the environment variables of the process with this rank. The process writes the facts that it learns later to `file`.
    pub fn environment(&self, rank: usize, file: &Path) -> Vec<(OsString, OsString)> {
        let mut all: Vec<(&str, OsString)> = vec![(RANK, rank.to_string().into())];
        all.extend(file_variable(self.backend).map(|name| (name, file.into())));
        match (self.backend, self.coordinator) {
            (GroupBackend::Jaccl, Some(address)) => all.push((JACCL_COORDINATOR, address.to_string().into())),
            (GroupBackend::Nccl, Some(address)) => {
                let [ip, port] = NCCL_ADDRESS;
                all.push((ip, address.ip().to_string().into()));
                all.push((port, address.port().to_string().into()));
                all.push(("MLX_WORLD_SIZE", self.ranks.to_string().into()));
            }
            _ => {}
        }
        all.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

/// Returns the variable with the path of the file that describes the group, if the backend reads one.
pub(super) fn file_variable(backend: GroupBackend) -> Option<&'static str> {
    match backend {
        GroupBackend::Ring => Some("MLX_HOSTFILE"),
        GroupBackend::Jaccl => Some("MLX_IBV_DEVICES"),
        GroupBackend::Auto | GroupBackend::Nccl | GroupBackend::Mpi => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::Key;

    fn variables(backend: GroupBackend, rank: usize) -> Vec<(String, String)> {
        let own_address = Some([127, 0, 0, 1].into());
        let addresses = vec!["two:1".to_owned(), "three:1".to_owned()];
        let workers = Workers { backend, own_address, ..Workers::new(addresses, Key::default()) };
        let start = GroupStart::new(&workers).expect("a free port");
        let text = |value: OsString| value.into_string().expect("UTF-8");
        let all = start.environment(rank, Path::new("/a/file")).into_iter();
        let all: Vec<_> = all.map(|(name, value)| (text(name), text(value))).collect();
        let port = start.coordinator.map(|address| address.port().to_string()).unwrap_or_default();
        all.into_iter().map(|(name, value)| (name, value.replace(&port, "PORT"))).collect()
    }

    fn pairs<const N: usize>(expected: [(&str, &str); N]) -> Vec<(String, String)> {
        expected.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    #[test]
    fn each_backend_has_its_variables() {
        let ring = GroupStart { backend: GroupBackend::Ring, ranks: 3, coordinator: None };
        let found = ring.environment(2, Path::new("/a/file"));
        assert_eq!(
            found,
            [("MLX_RANK", "2"), ("MLX_HOSTFILE", "/a/file")].map(|(a, b)| (a.into(), b.into()))
        );
        assert_eq!(
            variables(GroupBackend::Jaccl, 1),
            pairs([
                ("MLX_RANK", "1"),
                ("MLX_IBV_DEVICES", "/a/file"),
                ("MLX_JACCL_COORDINATOR", "127.0.0.1:PORT"),
            ])
        );
        assert_eq!(
            variables(GroupBackend::Nccl, 0),
            pairs([
                ("MLX_RANK", "0"),
                ("NCCL_HOST_IP", "127.0.0.1"),
                ("NCCL_PORT", "PORT"),
                ("MLX_WORLD_SIZE", "3"),
            ])
        );
    }

    #[test]
    fn a_backend_that_cannot_be_used_is_refused_by_name() {
        let workers = |backend| Workers { backend, ..Workers::new(vec!["two:1".into()], Key::default()) };
        let refusal = |backend| workers(backend).resolved().expect_err("it is refused").to_string();
        assert!(refusal(GroupBackend::Mpi).starts_with("backend: is mpi, which needs processes that mpirun"));
        for backend in [GroupBackend::Jaccl, GroupBackend::Nccl] {
            // Without the backend, or else without its part of the hosts file.
            let found = refusal(backend);
            assert!(found.starts_with(&format!("backend: is {backend}, which ")), "{found}");
        }
        let found = workers(GroupBackend::Auto).resolved().expect("every build has a ring");
        assert_eq!(found.backend, GroupBackend::Ring);
    }
}
