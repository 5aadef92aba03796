//! The flags of the server. A flag wins over its environment variable, that over the file of `--config`, and that
//! over the default; `--print-config` shows what came of it.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_options::{ByteSize, CacheArgs, EngineArgs, Seconds};
use serde::Serialize;

/// The flags of the server.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// Read settings from this TOML file; --print-config shows its form
    #[arg(long, value_name = "FILE", env = "MLX_CONFIG")]
    pub config: Option<PathBuf>,

    /// Print the settings that would be used, in the form of a --config file, and exit
    #[arg(long)]
    pub print_config: bool,

    /// The form of the log: json, text, or auto, which is text on a terminal
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Auto)]
    pub log: LogForm,

    /// The settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// Short lines for people.
    Text,
}

/// The settings, one table for each heading; absent ones come from the config file or the defaults.
#[derive(Debug, Default, Args, Serialize)]
pub struct Settings {
    /// Which models are served.
    #[command(flatten, next_help_heading = "Models")]
    pub models: ModelArgs,
    /// Who may connect.
    #[command(flatten, next_help_heading = "Network")]
    pub network: NetworkArgs,
    /// How models run.
    #[command(flatten, next_help_heading = "Engine")]
    pub engine: EngineArgs,
    /// What is cached for later requests.
    #[command(flatten, next_help_heading = "Cache")]
    pub cache: CacheArgs,
    /// What happens to responses after their requests.
    #[command(flatten, next_help_heading = "Stored responses")]
    pub responses: ResponseArgs,
    /// Limits of size and time.
    #[command(flatten, next_help_heading = "Limits")]
    pub limits: LimitArgs,
}

/// Which models are served, and how long they stay loaded.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelArgs {
    /// A downloaded model or a model folder, as MODEL or NAME=MODEL; may be given several times; the first is the default of
    /// requests
    #[arg(short, long, value_name = "[NAME=]MODEL", env = "MLX_MODEL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    model: Vec<String>,

    /// Another name for a model, as ALIAS=NAME; may be given several times
    #[arg(long, value_name = "ALIAS=NAME", env = "MLX_ALIAS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alias: Vec<String>,

    /// An adapter of the first model, as NAME=FOLDER: a model of that name that shares the weights; may be given several times
    #[arg(long, value_name = "NAME=FOLDER", env = "MLX_ADAPTER", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapter: Vec<String>,

    /// Load all models at once instead of each at its first request; with --hostfile that is always so
    #[arg(long, env = "MLX_PRELOAD", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    preload: Option<bool>,

    /// Memory for all loaded models together, divided among them; idle models are unloaded if it is not enough [default: the machine's budget for one model]
    #[arg(long, value_name = "SIZE", env = "MLX_MODELS_BUDGET")]
    models_budget: Option<ByteSize>,

    /// Unload a model after this long without a request [default: never]
    #[arg(long, value_name = "SECONDS", env = "MLX_IDLE_TIMEOUT")]
    idle_timeout: Option<Seconds>,
}

/// Where the server listens and which clients may connect.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkArgs {
    /// The address to listen on; off loopback an API key is required [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", env = "MLX_HOST", value_parser = parse_host)]
    host: Option<IpAddr>,

    /// The port to listen on; 0 takes a free one, which the first line of the log names [default: 8080]
    #[arg(long, value_name = "PORT", env = "MLX_PORT")]
    port: Option<u16>,

    /// Require this API key, of at least 16 characters off loopback; may be given several times
    #[arg(long, value_name = "KEY", env = "MLX_API_KEY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    api_key: Vec<String>,

    /// Require one of the API keys in this file, one per line
    #[arg(long, value_name = "FILE", env = "MLX_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,

    /// Accept requests to this host name, besides localhost and --host; may be given several times
    #[arg(long, value_name = "NAME", env = "MLX_ALLOWED_HOST", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_host: Vec<String>,

    /// Allow web pages of this origin, with its scheme; may be given several times
    #[arg(long, value_name = "ORIGIN", env = "MLX_CORS_ORIGIN", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cors_origin: Vec<String>,

    /// Fetch images that requests name by an http or https URL, only from this host; may be given several times [default: refuse URLs]
    #[arg(long, value_name = "HOST[:PORT]", env = "MLX_ALLOW_IMAGE_URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_image_urls: Vec<String>,

    /// Refuse requests with unused fields, instead of naming the fields in the header x-ignored-fields
    #[arg(long, env = "MLX_STRICT", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    strict: Option<bool>,

    /// Serve no page for browsers at /
    #[arg(long, env = "MLX_NO_PAGE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_page: Option<bool>,
}

/// What happens to responses of `/v1/responses` after their requests.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResponseArgs {
    /// Memory for stored responses; the least recently used is forgotten first [default: 64MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_RESPONSES_STORE")]
    responses_store: Option<ByteSize>,

    /// How long a streamed response is computed after its client has left, so that it can come back [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_RESUME_WINDOW")]
    resume_window: Option<Seconds>,

    /// Write accepted stored responses to this folder; those that a crash interrupts are computed again [default: none]
    #[arg(long, value_name = "FOLDER", env = "MLX_JOURNAL")]
    journal: Option<PathBuf>,

    /// Maximum size of the ended responses in the journal; the oldest is removed first [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_JOURNAL_SIZE")]
    journal_size: Option<ByteSize>,
}

/// Limits of size and time.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitArgs {
    /// Maximum open connections; further ones are answered with 503 [default: 1024]
    #[arg(long, value_name = "N", env = "MLX_MAX_CONNECTIONS")]
    max_connections: Option<usize>,

    /// Maximum size of a request body [default: 16MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_MAX_BODY")]
    max_body: Option<ByteSize>,

    /// Memory for the bodies of all requests and what is read from them; further requests get 429 [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_BODY_MEMORY")]
    body_memory: Option<ByteSize>,

    /// Maximum answers of one request: prompts times n [default: 128]
    #[arg(long, value_name = "N", env = "MLX_MAX_CHOICES")]
    max_choices: Option<usize>,

    /// Maximum texts of one embedding request [default: 2048]
    #[arg(long, value_name = "N", env = "MLX_MAX_INPUTS")]
    max_inputs: Option<usize>,

    /// Time to receive the head of a request, and idle time between two [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_HEADER_TIMEOUT")]
    header_timeout: Option<Seconds>,

    /// Time to receive a request body [default: 60]
    #[arg(long, value_name = "SECONDS", env = "MLX_BODY_TIMEOUT")]
    body_timeout: Option<Seconds>,

    /// Close a connection that reads nothing of its answer for this long [default: 60]
    #[arg(long, value_name = "SECONDS", env = "MLX_STREAM_IDLE_TIMEOUT")]
    stream_idle_timeout: Option<Seconds>,

    /// Send a comment after this long without a token, so that proxies keep the connection open [default: 10]
    #[arg(long, value_name = "SECONDS", env = "MLX_KEEP_ALIVE")]
    keep_alive: Option<Seconds>,

    /// How long running requests may take to finish after the server receives a signal to stop [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_SHUTDOWN_TIMEOUT")]
    shutdown_timeout: Option<Seconds>,
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    let address = if text == "localhost" { "127.0.0.1" } else { text };
    address.parse().map_err(|_| "it must be an IP address, such as 127.0.0.1, or localhost".to_owned())
}
