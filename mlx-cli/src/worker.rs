//! `mlx worker`: holds a shard of a model for a server or a command on another machine. It admits a rank 0 and works for it in a child
//! process, since nothing but its end stops a pass that hangs.

mod machine_args;
mod over_ssh;
pub(crate) mod rank;
mod rank_process;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use mlx_core::distributed::{Key, PORT, Parallel, Worker, WorkerEvent};
use mlx_files::size;
use mlx_hub::expanded;
use mlx_options::printable;

use machine_args::MachineArgs;

use crate::exit_code::Failure;
use crate::model_args::ModelName;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx worker MODEL                                           # on this machine only, to try it out
  mlx worker MODEL --host 10.0.0.2 --worker-key-file key     # on each machine of hosts.json but the first
  mlx worker MODEL --hostfile hosts.json --worker-key-file key # the same from the first one, over ssh
  mlx serve MODEL --hostfile hosts.json --worker-key-file key  # on the first";

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    model: ModelName,

    /// The address to listen on; any but loopback requires a key
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,

    /// The port to listen on; 0 picks a free port and prints it
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// The key that all machines share: a file with one line, as `openssl rand -hex 32` writes it; - reads the line from
    /// standard input, and the worker then exits when standard input closes
    #[arg(long, value_name = "FILE", env = "MLX_WORKER_KEY_FILE")]
    worker_key_file: Option<PathBuf>,

    /// An adapter that the first machine may use: a folder with adapter_config.json; may be given several times
    #[arg(long, value_name = "FOLDER")]
    adapter: Vec<PathBuf>,

    #[command(flatten)]
    machine: MachineArgs,

    /// Start a worker over ssh on each machine of this file but the first; the workers exit with this command
    #[arg(long, value_name = "FILE", conflicts_with_all = ["host", "port"])]
    hostfile: Option<PathBuf>,

    /// Print the commands for each machine instead of running them
    #[arg(long, requires = "hostfile")]
    print_commands: bool,

    /// Path of mlx on the other machines
    #[arg(long, value_name = "PATH", default_value = "mlx", requires = "hostfile")]
    remote_mlx: String,
}

/// The prefix of a worker's first message.
const LISTENING: &str = "listening on ";

/// Runs the command until the process is ended.
pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    if let Some(hostfile) = &args.hostfile {
        return over_ssh::run(args, &expanded(hostfile));
    }
    args.machine.device.choose()?;
    let key = args.worker_key_file.as_deref().map(read_key).transpose()?.unwrap_or_default();
    if args.worker_key_file.as_deref().is_some_and(is_stdin) {
        exit_on_stdin_end();
    }
    if key.is_empty() && !args.host.is_loopback() {
        let why = "accepts connections from other machines; give --worker-key-file too";
        return Err(Failure::usage("--host", why));
    }
    let folder = args.model.folder()?;
    let mut flags = args.machine.flags.clone();
    for adapter in &args.adapter {
        flags.extend(["--adapter".to_owned(), path_text(&mlx_hub::resolve_adapter(adapter)?)]);
    }
    let worker = Worker::new(&folder, key, args.machine.memory_budget.map(|size| size.0))?;
    let endpoint = format!("{}:{}", args.host, args.port);
    let cannot =
        |error: std::io::Error| Failure::usage("--port", format!("{endpoint} cannot be used: {error}"));
    let listener = TcpListener::bind((args.host, args.port)).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    terminal::note(&format!("{LISTENING}{address} for rank 0"));
    let work = |admitted, hear: &mut dyn FnMut(WorkerEvent)| {
        rank_process::run(&folder, &flags, admitted, hear)
            .unwrap_or_else(|error| format!("its process could not be started ({error})"))
    };
    let note = |event| terminal::note(&event_text(&event));
    worker.serve(listener, &Arc::new(AtomicBool::new(false)), work, note)?;
    Ok(())
}

/// Returns a path as an argument of a command.
fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns true if the path means standard input.
fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads a key from a file, or from a line of standard input.
fn read_key(path: &Path) -> mlx_core::Result<Key> {
    if !is_stdin(path) {
        return Key::read(&expanded(path));
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| mlx_core::Error::io(path, error))?;
    Key::of(path, &line)
}

/// Exits the program when standard input closes.
fn exit_on_stdin_end() {
    std::thread::spawn(|| {
        // A read error also exits.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
        terminal::note("the command that started this worker has exited");
        std::process::exit(0);
    });
}

fn event_text(event: &WorkerEvent) -> String {
    match event {
        WorkerEvent::Joined { from } => format!("rank 0 connected from {from}"),
        WorkerEvent::Loading { read, total } => format!("read {} of {}", size(*read), size(*total)),
        WorkerEvent::Ready { rank, ranks, parallel, layers: [first, end], weight_bytes } => {
            let what = match parallel {
                Parallel::Pipeline => format!("layers {first} to {}", end - 1),
                Parallel::Tensor => format!("a shard of each of {end} layers"),
            };
            format!("ready as rank {rank} of {ranks}: {what}, {}", size(*weight_bytes))
        }
        WorkerEvent::Left { reason } => format!("rank 0 disconnected: {}", printable(reason)),
        WorkerEvent::Refused { reason } => format!("connection refused: {}", printable(reason)),
    }
}
