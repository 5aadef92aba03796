//! The paths of jaccl and NCCL, with a stand-in for both that hangs, dies, fails and returns other shapes (support/group_stand_in.c).

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_tests::deadly::wait_until;
use mlx_tests::server::Server;
use mlx_tests::skipped::possible;
use mlx_tests::worker_process::WorkerProcess;
use serde_json::json;
use tempfile::TempDir;

use crate::worker_parts::MLX;
use crate::workers::{long_model, streams_during, wait_until_ready};

/// A server and a worker that load the stand-in.
struct Machines {
    server: Server,
    _worker: WorkerProcess,
    /// The file that names the next fault.
    fault: PathBuf,
    port: String,
    _folders: [TempDir; 2],
}

impl Machines {
    /// Starts both with this backend.
    fn start(backend: &str, parallel: &str) -> Self {
        let (folder, others) = (long_model(), tempfile::tempdir().expect("a temporary folder"));
        let path = |name: &str| others.path().join(name).to_str().expect("utf-8").to_owned();
        let (library, fault, program) = (path("stand_in.so"), path("fault"), path("mlx-with-stand-in"));
        compile(&library);
        let script = format!(
            "#!/bin/sh\nMLX_ENGINE_DEADLINE_MS=1000 STAND_IN_FAULT='{fault}' LD_PRELOAD='{library}' exec '{MLX}' \"$@\"\n"
        );
        std::fs::write(&program, script).expect("it can be written");
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("it is ours");
        let worker = WorkerProcess::start(&program, folder.path(), "0");
        let port = worker.port.clone();
        let hosts = json!([
            { "ips": ["127.0.0.1"], "rdma": [null, "rdma_en2"] },
            { "ips": [format!("127.0.0.1:{port}")], "rdma": ["rdma_en2", null] },
        ]);
        std::fs::write(path("hosts.json"), hosts.to_string()).expect("it can be written");
        let (hosts, key) = (path("hosts.json"), folder.path().join("key"));
        let flags = [
            "--hostfile",
            &hosts,
            "--worker-key-file",
            key.to_str().expect("utf-8"),
            "--worker-timeout",
            "1",
            "--exact",
        ];
        let more = ["--backend", backend, "--parallel", parallel, "--speculate", "off", "--max-running", "4"];
        let server = Server::start_on(&[&program, "serve"], folder.path(), &[&flags[..], &more].concat());
        wait_until_ready(&server);
        Self { server, _worker: worker, fault: fault.into(), port, _folders: [folder, others] }
    }

    /// Has a fault happen at the next exchange of a rank.
    fn fault(&self, text: &str) {
        let new = self.fault.with_extension("new");
        std::fs::write(&new, text).expect("it can be written");
        std::fs::rename(&new, &self.fault).expect("it can be renamed");
        wait_until(|| !self.fault.exists(), || format!("{text}: {}", self.server.log()));
    }
}

fn compile(library: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/support/group_stand_in.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", library]).arg(source);
    assert!(compiler.status().expect("a compiler").success());
}

/// Returns true if a library can be preloaded here.
fn can_preload() -> bool {
    possible(Path::new("/proc/self").exists(), "LD_PRELOAD, which only Linux has")
}

/// Checks that streams continue with equal texts after each fault of a rank, and that the log has the cause.
fn endure(backend: &str, parallel: &str, faults: &[(&str, &str)]) {
    let machines = Machines::start(backend, parallel);
    let server = &machines.server;
    let expected = streams_during(server, || ());
    for (fault, cause) in faults {
        let before = server.log().len();
        let found = streams_during(server, || {
            machines.fault(fault);
            wait_until(|| server.log()[before..].contains("an engine's process died"), || server.log());
        });
        assert_eq!(found, expected, "{backend}, {fault}: {}", server.log());
        let cause = cause.replace("PORT", &machines.port);
        assert!(server.log()[before..].contains(&cause), "{backend}, {fault}: {}", server.log());
        wait_until_ready(server);
    }
}

#[test]
fn streams_continue_after_faults_of_jaccl() {
    if !can_preload() {
        return;
    }
    endure(
        "jaccl",
        "tensor",
        &[
            ("hang 1", "a step made no progress"),
            ("die 0", "was ended by signal 6"),
            ("error 1", "rank 1 (127.0.0.1:PORT) could not continue"),
            ("shape 0", "rank 0 could not continue"),
        ],
    );
}

#[test]
fn streams_continue_after_faults_of_nccl() {
    if !can_preload() {
        return;
    }
    endure(
        "nccl",
        "pipeline",
        &[
            ("hang 0", "a step made no progress"),
            ("die 1", "rank 1 (127.0.0.1:PORT) "),
            ("error 0", "rank 0 could not continue"),
            ("shape 1", "rank 1 (127.0.0.1:PORT) could not continue"),
        ],
    );
}
