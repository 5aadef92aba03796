//! The flags of `mlx chat`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use mlx_core::Error;
use mlx_core::chat::ContextPolicy;
use mlx_options::{PrefixCacheArgs, Seconds};

use crate::model_args::ModelArgs;
use crate::profile_args::ProfileArgs;
use crate::request_args::RequestArgs;
use crate::think::ThinkArgs;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("tool_source").args(["tools", "mcp"]).multiple(true))]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) profile: ProfileArgs,

    #[command(flatten)]
    pub(crate) prefix_cache: PrefixCacheArgs,

    /// System prompt for the whole conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// Use the text of this file as the first message
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,

    /// Save the conversation in this file; continue it if the file exists
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,

    /// Continue the latest chat of a terminal
    #[arg(long = "continue", conflicts_with_all = ["session", "no_history"])]
    pub(crate) continue_latest: bool,

    /// Do not keep this chat for --continue, nor its messages in the input history
    #[arg(long)]
    pub(crate) no_history: bool,

    /// Disable colors, thumbnails and the status line; implied if NO_COLOR is set or output is not a terminal
    #[arg(long)]
    pub(crate) plain: bool,

    /// Policy when the conversation exceeds the model's context: evict-turns drops the oldest turns, slide also drops the oldest
    /// positions during an answer, stop ends with an error [default: evict-turns]
    #[arg(long, value_name = "POLICY", env = "MLX_CONTEXT_POLICY")]
    pub(crate) context_policy: Option<ContextPolicy>,

    /// Let the model call the commands of this TOML file; each call needs your confirmation
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Let the model call the tools of the MCP servers in this mcpServers file; each call needs your confirmation
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,

    /// Time for an MCP server to start, and for each call of its tools
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "mcp")]
    pub(crate) mcp_timeout: Seconds,

    /// Run calls of this tool without confirmation, also without a terminal; may be given several times
    #[arg(long, value_name = "NAME", requires = "tool_source")]
    pub(crate) allow_tool: Vec<String>,

    /// Maximum rounds of tool calls per message; the model must then answer in text
    #[arg(long, value_name = "N", default_value_t = 8, requires = "tool_source")]
    pub(crate) tool_rounds: usize,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,
}

impl ChatArgs {
    /// Returns an error about the tools that names the given flag.
    pub(crate) fn tool_error(&self, error: Error) -> Error {
        match error {
            Error::Request { field: "tools", message } if self.tools.is_none() => {
                Error::request("mcp", message)
            }
            other => other,
        }
    }
}
