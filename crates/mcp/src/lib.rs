//! Tools of MCP servers: reads an `mcpServers` file, starts its servers, lists their tools and calls them. Invariant: a server that dies,
//! hangs, floods or sends garbage causes an error text within the time limits, and never more than bounded memory. This crate uses no MLX.

mod clipped;
mod config;
mod connection;
mod meter;
mod names;
mod output;
mod process;
mod server;
mod toolset;

pub use clipped::Clipped;
pub use config::{ServerConfig, Transport, read};
pub use names::offered;
pub use output::{Output, Part};
pub use process::SECRET_VARIABLES;
pub use server::{Limits, Server, Tool};
pub use toolset::{NamedTool, Toolset};
