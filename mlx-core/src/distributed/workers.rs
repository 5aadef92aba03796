//! Which other machines hold layers of a model, from a hosts file as mlx.launch writes it.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::key::Key;
use crate::error::{Error, Result};

/// The port of a worker whose address has none.
pub const PORT: u16 = 32323;

/// After how long without a word a machine is given up.
pub const SILENCE: Duration = Duration::from_secs(10);

/// The timeouts that machines may have.
pub const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);

/// The most machines of a model.
pub(super) const MAX_MACHINES: usize = 64;

/// The other machines of a model, and how they are spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// Their addresses, `HOST:PORT`, in the order of their layers.
    pub addresses: Vec<String>,
    /// The key that all machines share; empty if there is none.
    pub key: Key,
    /// After how long without a word a machine is given up.
    pub silence: Duration,
    /// How long a machine that is not there yet is waited for when the engine starts.
    pub patience: Duration,
}

/// One entry of a hosts file.
#[derive(Deserialize)]
struct Host {
    /// What ssh calls the machine.
    ssh: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
}

/// A hosts file: the hosts alone, or with settings beside them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Hosts {
    Plain(Vec<Host>),
    WithSettings { hosts: Vec<Host> },
}

impl Workers {
    /// Those at these addresses, with the usual patience.
    pub fn new(addresses: Vec<String>, key: Key) -> Self {
        Self { addresses, key, silence: SILENCE, patience: Duration::from_mins(1) }
    }

    /// The same with another timeout.
    ///
    /// # Errors
    /// It is outside of [`TIMEOUT_RANGE`].
    pub fn with_timeout(self, timeout: Duration) -> Result<Self> {
        if TIMEOUT_RANGE.contains(&timeout) {
            return Ok(Self { silence: timeout, ..self });
        }
        let [given, least, most] =
            [timeout, *TIMEOUT_RANGE.start(), *TIMEOUT_RANGE.end()].map(|it| it.as_secs_f64());
        let message = format!("is {given} s; it must be from {least} to {most} s");
        Err(Error::option("worker_timeout", message))
    }

    /// The machines behind the first one in the hosts file `path`, which is this one. Each is called by its first IP address, which may have
    /// a port, or by its name for ssh.
    pub fn read(path: &Path, key: Key) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
        let Ok(Hosts::Plain(hosts) | Hosts::WithSettings { hosts }) = serde_json::from_str(&text) else {
            let message = "is not a list of hosts such as [{\"ssh\": \"one\", \"ips\": [\"10.0.0.1\"]}, …]";
            return Err(Error::file(path, message));
        };
        if !(2..=MAX_MACHINES).contains(&hosts.len()) {
            let message = format!("has {} hosts; a model is on 2 to {MAX_MACHINES} machines", hosts.len());
            return Err(Error::file(path, message));
        }
        let address = |(rank, host): (usize, &Host)| {
            let name = host.ips.first().or(host.ssh.as_ref()).filter(|name| !name.is_empty());
            let name =
                name.ok_or_else(|| Error::file(path, format!("host {rank} has neither ips nor ssh")))?;
            Ok(with_port(name))
        };
        let addresses = hosts.iter().enumerate().skip(1).map(address).collect::<Result<Vec<String>>>()?;
        for (place, address) in addresses.iter().enumerate() {
            if addresses[..place].contains(address) {
                let message =
                    format!("has {address} twice; give each worker a port, as in \"10.0.0.2:32324\"");
                return Err(Error::file(path, message));
            }
        }
        Ok(Self::new(addresses, key))
    }
}

/// An address with the usual port, if it has none.
fn with_port(name: &str) -> String {
    let is_v6 = name.matches(':').count() > 1;
    match name.rsplit_once(':') {
        Some((_, port)) if !is_v6 && port.parse::<u16>().is_ok() => name.to_owned(),
        Some((host, port)) if is_v6 && host.ends_with(']') && port.parse::<u16>().is_ok() => name.to_owned(),
        _ if is_v6 && !name.starts_with('[') => format!("[{name}]:{PORT}"),
        _ => format!("{name}:{PORT}"),
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
        assert_eq!(with(600.0).expect("it is allowed").silence, Duration::from_mins(10));
    }

    fn read(text: &str) -> Result<Vec<String>> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it is written");
        Workers::read(file.path(), Key::default()).map(|workers| workers.addresses)
    }

    #[test]
    fn both_forms_of_mlx_launch_are_read() {
        let plain = r#"[{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2", "10.0.1.2"], "rdma": [null]}]"#;
        assert_eq!(read(plain).expect("it is right"), ["10.0.0.2:32323"]);
        let settings = format!(r#"{{"backend": "ring", "envs": [], "hosts": {plain}}}"#);
        assert_eq!(read(&settings).expect("it is right"), ["10.0.0.2:32323"]);
    }

    #[test]
    fn addresses_may_have_ports() {
        let hosts = r#"[{"ssh": "a"}, {"ssh": "b"}, {"ips": ["c:7"]}, {"ips": ["fe80::1"]}, {"ips": ["[fe80::1]:9"]}]"#;
        let expected = ["b:32323", "c:7", "[fe80::1]:32323", "[fe80::1]:9"];
        assert_eq!(read(hosts).expect("it is right"), expected);
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        for (text, expected) in [
            ("{", "is not a list of hosts"),
            (r#"[{"ssh": "a"}]"#, "has 1 hosts"),
            (r#"[{"ssh": "a"}, {"ips": []}]"#, "host 1 has neither"),
            (r#"[{"ssh": "a"}, {"ssh": "b"}, {"ssh": "b"}]"#, "has b:32323 twice"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
