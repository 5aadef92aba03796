//! The memory budget of a worker, and where it comes from: a variable is of this machine, a flag is for all that are started.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use mlx_options::ByteSize;

/// What was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// By the flag, or else by the variable.
    pub(super) size: Option<ByteSize>,
    is_flag: bool,
}

#[derive(Args)]
struct Given {
    /// Memory for weights and caches, as in 8GB; with --hostfile that of each worker, and only as a flag [default: a share of the
    /// machine's memory]
    #[arg(long, value_name = "SIZE", env = "MLX_MEMORY_BUDGET")]
    memory_budget: Option<ByteSize>,
}

impl Budget {
    /// What was given as a flag.
    pub(super) fn flag(self) -> Option<ByteSize> {
        self.size.filter(|_| self.is_flag)
    }
}

impl FromArgMatches for Budget {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Given { memory_budget: size } = Given::from_arg_matches(matches)?;
        Ok(Self { size, is_flag: matches.value_source("memory_budget") == Some(ValueSource::CommandLine) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Budget {
    fn augment_args(command: Command) -> Command {
        Given::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args_for_update(command)
    }
}
