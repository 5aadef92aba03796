//! `mlx cluster check`: measures the links to the workers of a hosts file and predicts the speed of each way to divide a model.

mod group_speed;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mlx_core::distributed::{
    Exchange, GroupBackend, GroupSpeed, Key, Link, Parallel, Plan, Workers, measure_links,
};
use mlx_core::engine::EngineOptions;
use mlx_core::inspect::divide;
use mlx_core::machine::read_speed;
use mlx_files::size;
use mlx_hub::expanded;
use mlx_options::{DeviceArgs, describe};

use crate::exit_code::Failure;
use crate::model_args::ModelName;
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mlx cluster check --hostfile hosts.json --worker-key-file key        # the links
  mlx cluster check MODEL --hostfile hosts.json --worker-key-file key  # also the expected speed of MODEL";

/// The time that a worker has to accept the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The commands of `mlx cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Measure the links to the workers of a hosts file, and predict the speed of each way to split a model
    #[command(after_help = EXAMPLES)]
    Check(CheckArgs),
    /// Join the group of the workers on standard input and measure it
    #[command(hide = true)]
    Measure,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    model: ModelName,

    /// The machines, in the format of mlx.launch; the first is this machine, and `mlx worker` runs on each of the others
    #[arg(long, value_name = "FILE", env = "MLX_HOSTFILE")]
    hostfile: PathBuf,

    /// File with the key that is shared with the workers, on one line
    #[arg(long, value_name = "FILE", env = "MLX_WORKER_KEY_FILE")]
    worker_key_file: Option<PathBuf>,

    /// Backend of MLX to measure: auto, ring, jaccl or nccl, as for `mlx serve` [default: auto]
    #[arg(long, value_name = "HOW", env = "MLX_BACKEND")]
    backend: Option<GroupBackend>,

    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(command: &ClusterCommand) -> Result<(), Failure> {
    let args = match command {
        ClusterCommand::Check(args) => args,
        ClusterCommand::Measure => return group_speed::run_child(),
    };
    args.device.choose()?;
    let folder = args.model.given()?.is_some().then(|| args.model.folder()).transpose()?;
    let key = args.worker_key_file.as_deref().map(|file| Key::read(&expanded(file))).transpose()?;
    let workers = Workers::read(&expanded(&args.hostfile), key.unwrap_or_default())?;
    let backend = args.backend.unwrap_or_default();
    let workers = Workers { connect_timeout: CONNECT_TIMEOUT, backend, ..workers }.resolved()?;
    let links = measure_links(&workers)?;
    let group = group_speed::measure(&workers, args.device)?;
    let mut report: Vec<String> = links.iter().map(link_text).collect();
    report.push(group_text(workers.backend, &group));
    if let Some(folder) = folder {
        let speed = read_speed()?;
        report.push(format!("this machine reads {} of weights per second", size(speed as u64)));
        let options = EngineOptions::default();
        let mut best: Option<(f64, Parallel)> = None;
        for parallel in [Parallel::Pipeline, Parallel::Tensor] {
            let name = format!("--parallel {parallel}");
            match divide(&folder, &options, links.len() + 1, parallel) {
                Err(error) => report.push(format!("{name}: not possible: {}", describe(&error))),
                Ok(found) => {
                    let [compute, network] = token_seconds(&found.plan, &group, speed);
                    let rate = 1.0 / (compute + network);
                    report.push(format!("{name}: {}", rate_text(rate, [compute, network], &found.plan)));
                    if best.is_none_or(|(most, _)| rate > most) {
                        best = Some((rate, parallel));
                    }
                }
            }
        }
        if let Some((_, parallel)) = best {
            report.push(format!("use --parallel {parallel}"));
        }
    }
    terminal::show(&(report.join("\n") + "\n"))
}

fn link_text(link: &Link) -> String {
    let (speed, budget) = (size(link.bytes_per_second as u64), size(link.memory_budget));
    let milliseconds = link.round_trip.as_secs_f64() * 1e3;
    format!("{}: round trip {milliseconds:.3} ms, {speed} per second, {budget} for the model", link.worker)
}

fn group_text(backend: GroupBackend, group: &GroupSpeed) -> String {
    let text = |Exchange { seconds, bytes_per_second }: Exchange| {
        format!("{:.3} ms, {} per second", seconds * 1e3, size(bytes_per_second as u64))
    };
    format!("{backend}: to the next machine {}; a sum {}", text(group.transfer), text(group.sum))
}

fn rate_text(rate: f64, seconds: [f64; 2], plan: &Plan) -> String {
    let [compute, network] = seconds.map(|seconds| seconds * 1e3);
    let bound = if plan.is_mixture { "at least" } else { "about" };
    format!("{bound} {rate:.1} tokens per second (weights {compute:.2} ms, network {network:.2} ms)")
}

/// Returns the expected seconds of a token: for reading the weights, if all machines read `speed` bytes per second, and for the exchanges.
/// The weights of all experts count.
fn token_seconds(plan: &Plan, group: &GroupSpeed, speed: f64) -> [f64; 2] {
    let weights = plan.shares.iter().map(|share| share.weight_bytes as f64);
    let transfers = |count: usize| group.transfer.time(count, count as u64 * plan.hidden_bytes);
    let (read, exchanges) = match plan.parallel {
        Parallel::Pipeline => (weights.sum(), transfers(plan.shares.len())),
        Parallel::Tensor => {
            let sums = group.sum.time(plan.sums.0, plan.sums.1);
            (weights.fold(0.0, f64::max), transfers(plan.shares.len() - 1) + sums)
        }
    };
    [read / speed, exchanges]
}
