//! A worker's device and memory flags. A variable applies to this machine, a flag to all workers that the command starts.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use mlx_options::{ByteSize, DeviceArgs};

/// The device and memory options of a worker, and the flags to pass on.
#[derive(Debug, Clone)]
pub(super) struct MachineArgs {
    /// From the flag, or from the variable.
    pub(super) memory_budget: Option<ByteSize>,
    /// From the flag, or from the variable.
    pub(super) device: DeviceArgs,
    /// The given flags, as arguments to pass on. Variables are not included.
    pub(super) flags: Vec<String>,
}

#[derive(Args)]
struct MachineFlags {
    /// Memory for weights and caches, such as 8GB; with --hostfile it applies to each worker, and only the flag counts [default: a
    /// share of the machine's memory]
    #[arg(long, value_name = "SIZE", env = "MLX_MEMORY_BUDGET")]
    memory_budget: Option<ByteSize>,

    #[command(flatten)]
    device: DeviceArgs,
}

impl FromArgMatches for MachineArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let MachineFlags { memory_budget, device } = MachineFlags::from_arg_matches(matches)?;
        let is_flag = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let budget = memory_budget.filter(|_| is_flag("memory_budget"));
        let kind = device.device.filter(|_| is_flag("device"));
        let budget = budget.map(|size| ["--memory-budget".to_owned(), size.0.to_string()]);
        let kind = kind.map(|kind| ["--device".to_owned(), kind.to_string()]);
        Ok(Self { memory_budget, device, flags: budget.into_iter().chain(kind).flatten().collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for MachineArgs {
    fn augment_args(command: Command) -> Command {
        MachineFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        MachineFlags::augment_args_for_update(command)
    }
}
