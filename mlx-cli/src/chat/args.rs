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

    /// Instructions for the whole conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,

    /// The first message is the text of this file
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,

    /// Keep the conversation in this file, and go on with it if it is there
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,

    /// No colors, no thumbnails of pictures and no status line; also off when NO_COLOR is set or output is not a terminal
    #[arg(long)]
    pub(crate) plain: bool,

    /// When the conversation outgrows the model's context: evict-turns forgets the oldest turns, slide does and lets
    /// answers go on without end, stop ends with an error
    #[arg(long, value_name = "POLICY", env = "MLX_CONTEXT_POLICY", default_value = "evict-turns")]
    pub(crate) context_policy: ContextPolicy,

    /// Let the model call the commands of this TOML file; each call is shown and asked for
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Run calls of this tool without a question, also without a terminal; may be given several times
    #[arg(long, value_name = "NAME", requires = "tools")]
    pub(crate) allow_tool: Vec<String>,

    /// Rounds of calls for one message; the answer after them is a text
    #[arg(long, value_name = "N", default_value_t = 8, requires = "tools")]
    pub(crate) tool_rounds: usize,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    #[command(flatten)]
    pub(crate) options: RequestArgs,
}
