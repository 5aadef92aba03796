//! The workers of a model: their addresses, the way the model is divided, the key and the timeouts.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::group_backend::GroupBackend;
use super::hosts::Host;
use super::key::Key;
use super::parallel::Parallel;
use crate::error::{Error, Result};

/// The default time without a message after which a machine counts as lost.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// The allowed range of the heartbeat timeout.
pub const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);

/// The workers of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// The addresses, `HOST:PORT`, in the order of the layers.
    pub addresses: Vec<String>,
    /// The way the model is divided.
    pub parallel: Parallel,
    /// The backend of MLX over which the machines exchange arrays.
    pub backend: GroupBackend,
    /// The address of this machine in the hosts file, if it is an IP address.
    pub own_address: Option<IpAddr>,
    /// The RDMA devices of the hosts file: for each machine a list with its device for each other one, as JSON.
    pub rdma: Option<String>,
    /// The key that all machines share; may be empty.
    pub key: Key,
    /// The time without a message after which a machine counts as lost.
    pub heartbeat_timeout: Duration,
    /// The time that a starting engine waits for a worker to accept a connection.
    pub connect_timeout: Duration,
}

impl Workers {
    /// Creates workers at these addresses, in pipeline mode and with the default timeouts.
    pub fn new(addresses: Vec<String>, key: Key) -> Self {
        Self {
            addresses,
            parallel: Parallel::default(),
            backend: GroupBackend::default(),
            own_address: None,
            rdma: None,
            key,
            heartbeat_timeout: HEARTBEAT_TIMEOUT,
            connect_timeout: Duration::from_mins(1),
        }
    }

    /// Sets the heartbeat timeout.
    ///
    /// # Errors
    /// If it is outside of [`TIMEOUT_RANGE`].
    pub fn with_timeout(self, timeout: Duration) -> Result<Self> {
        if TIMEOUT_RANGE.contains(&timeout) {
            return Ok(Self { heartbeat_timeout: timeout, ..self });
        }
        let [given, least, most] =
            [timeout, *TIMEOUT_RANGE.start(), *TIMEOUT_RANGE.end()].map(|it| it.as_secs_f64());
        let message = format!("is {given} s; it must be from {least} to {most} s");
        Err(Error::option("worker_timeout", message))
    }

    /// Reads the workers from a [hosts file](Host::read).
    pub fn read(path: &Path, key: Key) -> Result<Self> {
        let addresses = Host::read(path)?.iter().map(Host::address).collect();
        let (own_address, rdma) = Host::read_links(path)?;
        Ok(Self { own_address, rdma, ..Self::new(addresses, key) })
    }

    /// Chooses the backend if it is `auto`.
    ///
    /// # Errors
    /// If the backend is not available, or the hosts file lacks what it needs.
    pub fn resolved(self) -> Result<Self> {
        let backend = match self.backend {
            GroupBackend::Auto if self.rdma.is_some() && self.expect_usable(GroupBackend::Jaccl).is_ok() => {
                GroupBackend::Jaccl
            }
            GroupBackend::Auto => GroupBackend::Ring,
            other => other,
        };
        self.expect_usable(backend)?;
        Ok(Self { backend, ..self })
    }

    /// Checks that a backend can be used.
    fn expect_usable(&self, backend: GroupBackend) -> Result<()> {
        backend.expect_available()?;
        if backend == GroupBackend::Jaccl && self.rdma.is_none() {
            let message = "is jaccl, which needs `rdma` for each host of the hosts file, as mlx.distributed_config writes it";
            return Err(Error::option("backend", message));
        }
        if backend.needs_coordinator() && self.own_address.is_none() {
            return Err(backend.no_address());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_range() {
        let with =
            |seconds| Workers::new(Vec::new(), Key::default()).with_timeout(Duration::from_secs_f64(seconds));
        for wrong in [0.0, 0.09, 601.0] {
            let error = with(wrong).expect_err("it is refused").to_string();
            assert_eq!(error, format!("worker_timeout: is {wrong} s; it must be from 0.1 to 600 s"));
        }
        assert_eq!(with(600.0).expect("it is allowed").heartbeat_timeout, Duration::from_mins(10));
    }
}
