//! Workers that do not fit a rank 0 are refused by name, and connections that say nothing keep no rank 0 out.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use mlx_core::distributed::{Key, Parallel, Workers};
use mlx_core::engine::EngineOptions;
use mlx_tests::divisible::with_layers;
use mlx_tests::machines::{self, several};
use mlx_tests::worker_process::WorkerProcess;
use mlx_tests::{cpu, greedy, run};

use crate::distributed::{prompt, start};
use crate::worker_parts::MLX;

/// Returns the error of an engine with these workers.
fn refusal(folder: &Path, workers: Workers) -> String {
    let workers = Workers { connect_timeout: Duration::from_millis(500), ..workers };
    let refused = machines::try_start(MLX, folder, workers, &EngineOptions::default());
    refused.map(drop).expect_err("it does not fit").to_string()
}

fn of(workers: &[WorkerProcess]) -> Workers {
    machines::workers(workers, Parallel::Pipeline)
}

#[test]
fn mismatched_workers_are_refused() {
    let _turn = cpu();
    let (folder, other) = (with_layers("llama-f32", 4), with_layers("llama-bias-f32", 4));
    let there = several(MLX, folder.path(), 1);
    let model = refusal(other.path(), of(&there));
    assert!(model.contains("is not the model that rank 0 has"), "{model}");
    let key_file = other.path().join("key");
    std::fs::write(&key_file, "0123456789abcdef").expect("it can be written");
    let key = Key::read(&key_file).expect("it is long enough");
    let wrong = refusal(folder.path(), Workers { key, ..of(&there) });
    assert!(wrong.contains("does not accept the key"), "{wrong}");
    // This one has a key.
    let keyed = several(MLX, other.path(), 1);
    assert!(refusal(other.path(), of(&keyed)).contains("does not accept the key"));
    let engine = start(folder.path(), &there, &EngineOptions::default());
    let second = refusal(folder.path(), of(&there));
    assert!(second.contains("works for another rank 0"), "{second}");
    assert_eq!(run(&engine, &prompt(9, 1), &greedy(4)).ids().len(), 4);
    let unused = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    let nobody = Workers { addresses: vec![unused.to_string()], ..of(&[]) };
    assert!(refusal(folder.path(), nobody).contains("cannot be reached"));
}

#[test]
fn a_worker_without_memory_is_refused() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let budget = |size: &str| {
        let flags = ["--port", "0", "--device", "cpu", "--memory-budget", size];
        refusal(folder.path(), of(&[WorkerProcess::start_with(MLX, folder.path(), &flags)]))
    };
    let small = budget("1000");
    assert!(small.contains("rank 1 (") && small.contains("memory_budget"), "{small}");
    // Memory for its layers and no more.
    let full = budget("1MiB");
    assert!(full.starts_with("memory_budget: of rank 1 leaves"), "{full}");
}

#[test]
fn connections_that_say_nothing_keep_no_rank_0_out() {
    let _turn = cpu();
    let folder = with_layers("llama-f32", 4);
    let there = several(MLX, folder.path(), 1);
    let port: u16 = there[0].port.parse().expect("a port");
    let idle: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
    let engine = start(folder.path(), &there, &EngineOptions::default());
    assert_eq!(run(&engine, &prompt(9, 1), &greedy(4)).ids().len(), 4);
    drop(idle);
}
