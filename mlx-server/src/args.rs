//! The server's flags. Precedence: flag, environment variable, file of `--config`, default. `--print-config` shows the result.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_options::{ByteSize, CacheArgs, EngineArgs, Seconds};
use serde::Serialize;

/// The flags of the server.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// Read settings from this TOML file; --print-config shows the format
    #[arg(long, value_name = "FILE", env = "MLX_CONFIG")]
    pub config: Option<PathBuf>,

    /// Print the effective settings as a --config file and exit
    #[arg(long)]
    pub print_config: bool,

    /// Log format: json, text, or auto (text on a terminal, json otherwise)
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    pub log: LogFormat,

    /// The settings.
    #[command(flatten)]
    pub settings: Settings,
}

/// The log format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object per line.
    Json,
    /// Short lines for humans.
    Text,
}

/// The settings, one table per heading. Absent values come from the config file or the defaults.
#[derive(Debug, Default, Args, Serialize)]
pub struct Settings {
    /// The served models.
    #[command(flatten, next_help_heading = "Models")]
    pub models: ModelArgs,
    /// Network and access.
    #[command(flatten, next_help_heading = "Network")]
    pub network: NetworkArgs,
    /// Engine options.
    #[command(flatten, next_help_heading = "Engine")]
    pub engine: EngineArgs,
    /// Caches.
    #[command(flatten, next_help_heading = "Cache")]
    pub cache: CacheArgs,
    /// Stored responses.
    #[command(flatten, next_help_heading = "Stored responses")]
    pub responses: ResponseArgs,
    /// MCP servers.
    #[command(flatten, next_help_heading = "Tools")]
    pub tools: ToolArgs,
    /// Files and batches.
    #[command(flatten, next_help_heading = "Files and batches")]
    pub files: FileArgs,
    /// Size and time limits.
    #[command(flatten, next_help_heading = "Limits")]
    pub limits: LimitArgs,
}

/// The served models, and when they are loaded and unloaded.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelArgs {
    /// A name that `mlx list` shows, a model folder or a GGUF file, as MODEL or NAME=MODEL; may be given several times; requests without a model use the first
    #[arg(short, long, value_name = "[NAME=]MODEL", env = "MLX_MODEL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    model: Vec<String>,

    /// Another name for a model, as ALIAS=NAME; may be given several times
    #[arg(long, value_name = "ALIAS=NAME", env = "MLX_ALIAS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alias: Vec<String>,

    /// An adapter of the first model, as NAME=FOLDER; it is served as model NAME and shares the base weights; may be given several times
    #[arg(long, value_name = "NAME=FOLDER", env = "MLX_ADAPTER", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapter: Vec<String>,

    /// Load all models at startup instead of at their first request; always on with --hostfile
    #[arg(long, env = "MLX_PRELOAD", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    preload: Option<bool>,

    /// Memory for all loaded models together; idle models are unloaded when it runs out [default: the machine's budget for one model]
    #[arg(long, value_name = "SIZE", env = "MLX_MODELS_BUDGET")]
    models_budget: Option<ByteSize>,

    /// Run engines in the server's process; otherwise each model has a child process, and after a crash its requests continue in a new one
    #[arg(long, env = "MLX_IN_PROCESS", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    in_process: Option<bool>,

    /// Unload a model after this long without a request, unless a request sets another time [default: never]
    #[arg(long, value_name = "SECONDS", env = "MLX_IDLE_TIMEOUT")]
    idle_timeout: Option<Seconds>,

    /// Serve every model that `mlx list` shows by name, besides those given; the first request loads it [default: true]
    #[arg(long, env = "MLX_ALL_MODELS", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    all_models: Option<bool>,

    /// With --all-models, also serve the model folders and GGUF files in this folder; may be given several times
    #[arg(long, value_name = "FOLDER", env = "MLX_MODELS_DIR", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models_dir: Vec<PathBuf>,

    /// With --all-models, let clients download models from the Hugging Face Hub to this machine, by POST /api/pull or on the page; uses the server's HF_TOKEN
    #[arg(long, env = "MLX_ALLOW_PULL", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    allow_pull: Option<bool>,

    /// Serve the profiles in this TOML file as models; read again when it changes
    #[arg(long, value_name = "FILE", env = "MLX_PROFILES")]
    profiles: Option<PathBuf>,

    /// Number of models that are in memory at once; each gets an equal share of --models-budget [default: the number of models given]
    #[arg(long, value_name = "N", env = "MLX_LOADED_MODELS")]
    loaded_models: Option<usize>,

    /// Keep this model in memory until a client unloads it; a name of --model; may be given several times
    #[arg(long, value_name = "NAME", env = "MLX_PIN", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pin: Vec<String>,
}

/// The listening address and access control.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkArgs {
    /// The address to listen on; addresses other than loopback require an API key [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", env = "MLX_HOST", value_parser = parse_host)]
    host: Option<IpAddr>,

    /// The port to listen on; 0 picks a free port, which the first log line reports [default: 8080]
    #[arg(long, value_name = "PORT", env = "MLX_PORT")]
    port: Option<u16>,

    /// Require this API key; it needs at least 16 characters unless --host is loopback; may be given several times
    #[arg(long, value_name = "KEY", env = "MLX_API_KEY", hide_env_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    api_key: Vec<String>,

    /// Require one of the API keys in this file, one per line
    #[arg(long, value_name = "FILE", env = "MLX_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,

    /// Require one of the named API keys in this TOML file, with limits of requests and tokens a minute; read again when it changes
    #[arg(long, value_name = "FILE", env = "MLX_KEYS")]
    keys: Option<PathBuf>,

    /// Serve HTTPS with the certificate chain in this PEM file; read again when it changes; an API key is then required
    #[arg(long, value_name = "FILE", env = "MLX_TLS_CERT")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", env = "MLX_TLS_KEY")]
    tls_key: Option<PathBuf>,

    /// Accept requests for this host name, besides localhost and --host; may be given several times
    #[arg(long, value_name = "NAME", env = "MLX_ALLOWED_HOST", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_host: Vec<String>,

    /// Allow web pages of this origin, such as `https://example.org`; may be given several times
    #[arg(long, value_name = "ORIGIN", env = "MLX_CORS_ORIGIN", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cors_origin: Vec<String>,

    /// Fetch images that requests reference by http or https URL, from this host only; may be given several times [default: reject image URLs]
    #[arg(long, value_name = "HOST[:PORT]", env = "MLX_ALLOW_IMAGE_URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_image_urls: Vec<String>,

    /// Reject requests with unused fields instead of listing the fields in the header x-ignored-fields
    #[arg(long, env = "MLX_STRICT", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    strict: Option<bool>,

    /// Send OpenTelemetry traces of requests to the collector at this URL, by OTLP over HTTP [default: OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL", env = "MLX_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,

    /// Do not serve the web page at /
    #[arg(long, env = "MLX_NO_PAGE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_page: Option<bool>,
}

/// Storage of the responses of `/v1/responses`.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResponseArgs {
    /// Memory for stored responses; the least recently used is evicted first [default: 64MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_RESPONSES_STORE")]
    responses_store: Option<ByteSize>,

    /// Continue a streamed response this long after its client disconnects, so that the client can resume it [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_RESUME_WINDOW")]
    resume_window: Option<Seconds>,

    /// Record accepted stored responses in this folder; after a crash, interrupted ones are computed again [default: none]
    #[arg(long, value_name = "FOLDER", env = "MLX_JOURNAL")]
    journal: Option<PathBuf>,

    /// Maximum size of the finished responses in the journal; the oldest is removed first [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_JOURNAL_SIZE")]
    journal_size: Option<ByteSize>,
}

/// The MCP servers whose tools clients may run.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ToolArgs {
    /// Let clients run the tools of the MCP servers in this file of mcpServers; an API key is then required
    #[arg(long, value_name = "FILE", env = "MLX_MCP")]
    mcp: Option<PathBuf>,

    /// Time for an MCP server to start, and for each call of its tools [default: 60]
    #[arg(long, value_name = "SECONDS", env = "MLX_MCP_TIMEOUT")]
    mcp_timeout: Option<Seconds>,

    /// Use MCP servers on this host that responses name by server_url; may be given several times [default: reject server_url]
    #[arg(long, value_name = "HOST[:PORT]", env = "MLX_ALLOW_MCP_URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_mcp_urls: Vec<String>,
}

/// Files and batches.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileArgs {
    /// Store uploaded files and batches in this folder; batches continue after a restart [default: none, and /v1/files and /v1/batches are off]
    #[arg(long, value_name = "FOLDER", env = "MLX_FILES_DIR")]
    files_dir: Option<PathBuf>,

    /// Maximum size of all files together; further uploads get 413 [default: 4GiB]
    #[arg(long, value_name = "SIZE", env = "MLX_FILES_SIZE")]
    files_size: Option<ByteSize>,

    /// Number of lines of batches that run at the same time, at low priority [default: 4]
    #[arg(long, value_name = "N", env = "MLX_BATCH_LINES")]
    batch_lines: Option<usize>,
}

/// Size and time limits.
#[derive(Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitArgs {
    /// Maximum open connections; further connections get 503 [default: 1024]
    #[arg(long, value_name = "N", env = "MLX_MAX_CONNECTIONS")]
    max_connections: Option<usize>,

    /// Maximum size of a request body [default: 16MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_MAX_BODY")]
    max_body: Option<ByteSize>,

    /// Memory for the bodies of all requests and the values parsed from them; further requests get 429 [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "MLX_BODY_MEMORY")]
    body_memory: Option<ByteSize>,

    /// Maximum answers per request: prompts times n [default: 128]
    #[arg(long, value_name = "N", env = "MLX_MAX_CHOICES")]
    max_choices: Option<usize>,

    /// Maximum inputs per embedding or rerank request [default: 2048]
    #[arg(long, value_name = "N", env = "MLX_MAX_INPUTS")]
    max_inputs: Option<usize>,

    /// Time to receive the head of a request, and idle time between requests [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_HEADER_TIMEOUT")]
    header_timeout: Option<Seconds>,

    /// Time to receive a request body [default: 60]
    #[arg(long, value_name = "SECONDS", env = "MLX_BODY_TIMEOUT")]
    body_timeout: Option<Seconds>,

    /// Close a connection whose client reads nothing of its response for this long [default: 60]
    #[arg(long, value_name = "SECONDS", env = "MLX_STREAM_IDLE_TIMEOUT")]
    stream_idle_timeout: Option<Seconds>,

    /// Send a comment in a stream after this long without a token, so that proxies keep the connection open [default: 10]
    #[arg(long, value_name = "SECONDS", env = "MLX_KEEP_ALIVE")]
    keep_alive: Option<Seconds>,

    /// Time for running requests to finish after a stop signal [default: 30]
    #[arg(long, value_name = "SECONDS", env = "MLX_SHUTDOWN_TIMEOUT")]
    shutdown_timeout: Option<Seconds>,
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    let address = if text == "localhost" { "127.0.0.1" } else { text };
    address.parse().map_err(|_| "it must be an IP address, such as 127.0.0.1, or localhost".to_owned())
}
