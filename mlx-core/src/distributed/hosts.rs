//! The machines of a model, read from a hosts file in the format of mlx.launch.

use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// The default port of a worker.
pub const PORT: u16 = 32323;

/// The maximum number of machines of a model.
pub(super) const MAX_MACHINES: usize = 64;

/// A machine of a hosts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The name that ssh connects to.
    pub ssh: String,
    /// The name or IP address. An IPv6 address is in brackets.
    pub name: String,
    /// The port of its worker.
    pub port: u16,
    /// Environment variables of a worker that is started over ssh, each `NAME=VALUE`.
    pub envs: Vec<String>,
}

/// One entry of a hosts file.
#[derive(Deserialize)]
struct Entry {
    ssh: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
    /// The RDMA devices to each host, null to this one.
    rdma: Option<Vec<Value>>,
}

/// A hosts file: a list of hosts, or an object with the hosts and settings.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entries {
    Plain(Vec<Entry>),
    WithSettings {
        hosts: Vec<Entry>,
        #[serde(default)]
        envs: Vec<String>,
    },
}

impl Entries {
    /// Reads the hosts and the environment of their workers from a file.
    fn read(path: &Path) -> Result<(Vec<Entry>, Vec<String>)> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
        serde_json::from_str(&text).map(Self::parts).map_err(|_| {
            let message = "is not a list of hosts such as [{\"ssh\": \"one\", \"ips\": [\"10.0.0.1\"]}, …]";
            Error::file(path, message)
        })
    }

    /// Returns the hosts and the environment of their workers.
    fn parts(self) -> (Vec<Entry>, Vec<String>) {
        match self {
            Self::Plain(hosts) => (hosts, Vec::new()),
            Self::WithSettings { hosts, envs } => (hosts, envs),
        }
    }
}

impl Host {
    /// Reads the hosts after the first one of the hosts file `path`. Each host's address is its first entry in `ips`, which may have a port,
    /// or else its ssh name.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let (entries, envs) = Entries::read(path)?;
        if !(2..=MAX_MACHINES).contains(&entries.len()) {
            let message = format!("has {} hosts; it must have 2 to {MAX_MACHINES}", entries.len());
            return Err(Error::file(path, message));
        }
        if let Some(wrong) = envs.iter().find(|it| it.find('=').is_none_or(|place| place == 0)) {
            return Err(Error::file(path, format!("has {wrong:?} in envs, which is not NAME=VALUE")));
        }
        let host = |(rank, entry): (usize, &Entry)| {
            Self::of(entry, &envs).map_err(|message| Error::file(path, format!("host {rank} {message}")))
        };
        let hosts = entries.iter().enumerate().skip(1).map(host).collect::<Result<Vec<_>>>()?;
        for (place, host) in hosts.iter().enumerate() {
            let address = host.address();
            if hosts[..place].iter().any(|other| other.address() == address) {
                let message =
                    format!("has {address} twice; give each worker a port, as in \"10.0.0.2:32324\"");
                return Err(Error::file(path, message));
            }
        }
        Ok(hosts)
    }

    /// Reads the first host's address, if it is an IP address, and the RDMA devices of all hosts as JSON, if the hosts have them.
    pub(super) fn read_links(path: &Path) -> Result<(Option<IpAddr>, Option<String>)> {
        let (entries, _) = Entries::read(path)?;
        let own = entries.first().and_then(|first| Self::of(first, &[]).ok());
        let own = own.and_then(|host| host.name.trim_matches(['[', ']']).parse().ok());
        if entries.iter().all(|entry| entry.rdma.is_none()) {
            return Ok((own, None));
        }
        let devices = entries.iter().enumerate().map(|(rank, entry)| {
            let devices = entry.rdma.as_ref().map_or(0, Vec::len);
            let message = || {
                let hosts = entries.len();
                format!("host {rank} has {devices} entries in rdma; it must have one for each of the {hosts} hosts")
            };
            entry.rdma.as_ref().filter(|it| it.len() == entries.len()).ok_or_else(|| Error::file(path, message()))
        });
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let text = serde_json::to_string(&devices).map_err(|error| Error::Internal(error.to_string()))?;
        Ok((own, Some(text)))
    }

    fn of(entry: &Entry, envs: &[String]) -> Result<Self, String> {
        let named = entry.ips.first().or(entry.ssh.as_ref()).filter(|name| !name.is_empty());
        let named = named.ok_or("has neither ips nor ssh")?;
        let is_v6 = named.matches(':').count() > 1;
        let with_port = named.rsplit_once(':').filter(|(host, _)| !is_v6 || host.ends_with(']'));
        let (name, port) = match with_port {
            None => (named.as_str(), PORT),
            Some((host, port)) => match port.parse() {
                Ok(port) if port > 0 && !host.is_empty() => (host, port),
                _ => return Err(format!("is {named:?}, which is not NAME:PORT with a port from 1 to 65535")),
            },
        };
        let name = if is_v6 && !name.starts_with('[') { format!("[{name}]") } else { name.to_owned() };
        let bare = name.trim_matches(['[', ']']).to_owned();
        Ok(Self { ssh: entry.ssh.clone().unwrap_or(bare), name, port, envs: envs.to_vec() })
    }

    /// Returns the address as `NAME:PORT`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it is written");
        let of = |host: Host| format!("{} {}", host.ssh, host.address());
        Host::read(file.path()).map(|hosts| hosts.into_iter().map(of).collect())
    }

    #[test]
    fn both_forms_of_mlx_launch_are_read() {
        let plain = r#"[{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2", "10.0.1.2"], "rdma": [null]}]"#;
        assert_eq!(read(plain).expect("it is right"), ["b 10.0.0.2:32323"]);
        let settings = format!(r#"{{"backend": "ring", "envs": [], "hosts": {plain}}}"#);
        assert_eq!(read(&settings).expect("it is right"), ["b 10.0.0.2:32323"]);
    }

    fn links(text: &str) -> Result<(Option<IpAddr>, Option<String>)> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        Host::read_links(file.path())
    }

    #[test]
    fn rdma_devices_have_an_entry_for_each_host() {
        let one = r#"{"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5"]}"#;
        let found = links(&format!(r#"[{one}, {{"ssh": "b", "rdma": ["rdma_en4", null]}}]"#));
        let (own, devices) = found.expect("it is right");
        assert_eq!(own, Some([10, 0, 0, 1].into()));
        assert_eq!(devices.as_deref(), Some(r#"[[null,"rdma_en5"],["rdma_en4",null]]"#));
        for other in [r#"{"ssh": "b"}"#, r#"{"ssh": "b", "rdma": ["rdma_en4"]}"#] {
            let error = links(&format!("[{one}, {other}]")).expect_err("an entry is missing").to_string();
            assert!(error.contains("host 1 has ") && error.contains("each of the 2 hosts"), "{error}");
        }
        assert_eq!(links(r#"[{"ssh": "a"}, {"ssh": "b"}]"#).expect("it is right"), (None, None));
    }

    #[test]
    fn addresses_may_have_ports() {
        let hosts = r#"[{"ssh": "a"}, {"ssh": "b"}, {"ips": ["c:7"]}, {"ips": ["fe80::1"]}, {"ips": ["[fe80::1]:9"]}]"#;
        let expected = ["b b:32323", "c c:7", "fe80::1 [fe80::1]:32323", "fe80::1 [fe80::1]:9"];
        assert_eq!(read(hosts).expect("it is right"), expected);
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        for (text, expected) in [
            ("{", "is not a list of hosts"),
            (r#"[{"ssh": "a"}]"#, "has 1 hosts"),
            (r#"[{"ssh": "a"}, {"ips": []}]"#, "host 1 has neither"),
            (r#"[{"ssh": "a"}, {"ssh": "b"}, {"ssh": "b"}]"#, "has b:32323 twice"),
            (r#"[{"ssh": "a"}, {"ips": ["10.0.0.2:99999"]}]"#, "host 1 is \"10.0.0.2:99999\""),
            (r#"[{"ssh": "a"}, {"ips": ["[fe80::1]:0"]}]"#, "host 1 is \"[fe80::1]:0\""),
            (r#"[{"ssh": "a"}, {"ips": ["b:port"]}]"#, "host 1 is \"b:port\""),
            (r#"[{"ssh": "a"}, {"ips": [":7"]}]"#, "host 1 is \":7\""),
            (r#"{"envs": ["A"], "hosts": [{"ssh": "a"}, {"ssh": "b"}]}"#, "\"A\" in envs"),
            (r#"{"envs": ["=A"], "hosts": [{"ssh": "a"}, {"ssh": "b"}]}"#, "\"=A\" in envs"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
