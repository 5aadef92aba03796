//! Shared by the command line and the server: engine flags, profiles, error messages, sizes and times, the log filter, text
//! for a terminal.
//!
//! ```no_run
//! let budget: mlx_options::ByteSize = "12GB".parse().expect("a size");
//! println!("{} is {} bytes", mlx_options::rough_size(budget.0), budget.0);
//! ```
#![forbid(unsafe_code)]

mod cache;
mod closest;
mod colors;
mod describe;
mod device;
mod engine;
mod hidden;
mod human_units;
mod log_filter;
mod printable;
mod profile;
mod workers;

pub use cache::{CacheArgs, KvCacheArgs, PrefixCacheArgs};
pub use closest::closest;
pub use colors::allows_colors;
pub use describe::describe;
pub use device::DeviceArgs;
pub use engine::{EngineArgs, ExactArgs, LoadArgs, QueueArgs, SpeculateArgs};
pub use human_units::{ByteSize, Seconds};
pub use log_filter::{LOG_VARIABLE, log_filter};
pub use mlx_files::rough_size;
pub use printable::{Printer, printable, printable_json, visible};
pub use profile::{Profile, read_profiles};
pub use workers::WorkersArgs;
