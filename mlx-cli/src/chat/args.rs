//! The flags of `mlx chat`.

use std::path::PathBuf;

use clap::Args;
use mlx_core::chat::ContextPolicy;
use mlx_options::PrefixCacheArgs;

use crate::model_args::ModelArgs;
use crate::request_args::RequestArgs;
use crate::think::ThinkArgs;

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

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

    /// Disable colors, thumbnails and the status line; implied if NO_COLOR is set or output is not a terminal
    #[arg(long)]
    pub(crate) plain: bool,

    /// Policy when the conversation exceeds the model's context: evict-turns drops the oldest turns, slide also drops the oldest
    /// positions during an answer, stop ends with an error
    #[arg(long, value_name = "POLICY", env = "MLX_CONTEXT_POLICY", default_value = "evict-turns")]
    pub(crate) context_policy: ContextPolicy,

    /// Let the model call the commands of this TOML file; each call needs your confirmation
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Run calls of this tool without confirmation, also without a terminal; may be given several times
    #[arg(long, value_name = "NAME", requires = "tools")]
    pub(crate) allow_tool: Vec<String>,

    /// Maximum rounds of tool calls per message; the model must then answer in text
    #[arg(long, value_name = "N", default_value_t = 8, requires = "tools")]
    pub(crate) tool_rounds: usize,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,
}
