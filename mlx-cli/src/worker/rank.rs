//! `mlx rank`: the process in which a worker works for one rank 0. Its standard input is the connection. It writes its events to standard
//! output, one a line, and empty lines as heartbeats.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use mlx_core::distributed::{Admitted, GroupStart, OnLoss, Rank, WorkerEvent};
use mlx_engine_process::{end, end_with_parent};

use super::machine_args::MachineArgs;
use crate::exit_code::Failure;

/// Heartbeats per timeout.
const HEARTBEATS: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// The folder of the model
    folder: PathBuf,

    /// The address of rank 0
    #[arg(long)]
    from: String,

    /// The rank
    #[arg(long)]
    rank: usize,

    /// Milliseconds after which a silent rank 0 counts as lost
    #[arg(long)]
    heartbeat_timeout: u64,

    /// A folder of an adapter
    #[arg(long)]
    adapter: Vec<PathBuf>,

    #[command(flatten)]
    machine: MachineArgs,
}

/// Runs the command until rank 0 leaves.
pub(crate) fn run(args: &RankArgs) -> Result<(), Failure> {
    end_with_parent();
    mlx_core::ignore_requests_to_end();
    let no_socket = |error: io::Error| Failure::usage("rank", format!("is only for `mlx worker`: {error}"));
    let stream = TcpStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(no_socket)?);
    stream.peer_addr().map_err(no_socket)?;
    args.machine.device.choose()?;
    let heartbeat_timeout = Duration::from_millis(args.heartbeat_timeout);
    std::thread::spawn(move || {
        loop {
            send("");
            std::thread::sleep(heartbeat_timeout / HEARTBEATS);
        }
    });
    // The environment has the group already.
    let (from, rank, group) = (args.from.clone(), args.rank, GroupStart::default());
    let admitted = Admitted { stream, from, rank, heartbeat_timeout, group };
    let rank =
        Rank::new(&args.folder, args.adapter.clone(), args.machine.memory_budget.map(|size| size.0), None)?;
    let on_loss: OnLoss = Arc::new(|reason: &str| leave(reason.to_owned()));
    let (never, hear) = (AtomicBool::new(false), &mut |event| send_event(&event));
    leave(rank.serve(admitted, &never, hear, on_loss))
}

/// Reports that rank 0 has left, and ends this process. Whatever MLX still computes is of no use.
fn leave(reason: String) -> ! {
    send_event(&WorkerEvent::Left { reason });
    end()
}

fn send_event(event: &WorkerEvent) {
    if let Ok(line) = serde_json::to_string(event) {
        send(&line);
    }
}

/// Writes a line. Without a reader, the worker is gone, and so this process ends.
fn send(line: &str) {
    let mut out = io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        end();
    }
}
