//! Tools of MCP servers: reads an `mcpServers` file, starts its servers, lists their tools and calls them. Invariant: a server that dies,
//! hangs, floods or sends garbage causes an error text within the time limits, and never more than bounded memory. This crate uses no MLX.

mod config;
mod connection;
mod names;
mod output;
mod process;
mod server;
mod toolset;

pub use config::{ServerConfig, Transport, read};
pub use names::offered;
pub use output::{Output, Part};
pub use server::{Limits, Server, Tool};
pub use toolset::{NamedTool, Toolset};
