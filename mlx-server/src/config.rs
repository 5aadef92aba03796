//! The effective settings: defaults, overlaid by the file, the environment and the flags. The server's defaults are defined only here;
//! those of requests and engines are the core's.

mod files;
mod models;
mod network;
mod responses;
mod tools;
mod workers;

use std::net::SocketAddr;
use std::path::Path;

use mlx_core::engine::EngineOptions;
use mlx_files::create_private_folder;
use mlx_hub::expanded;
use mlx_options::{ByteSize, CacheArgs, EngineArgs, Seconds};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::args::{ServeArgs, Settings};
use crate::client::Identities;
pub use files::FileConfig;
pub use models::ModelConfig;
pub use network::NetworkConfig;
pub use responses::ResponseConfig;
pub use tools::ToolConfig;

/// The reason that the server cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

impl StartError {
    /// Returns an error about a file, flag or address.
    pub fn new(what: impl std::fmt::Display, reason: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {reason}"))
    }
}

/// All settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The served models.
    pub models: ModelConfig,
    /// Network and access.
    pub network: NetworkConfig,
    /// Engine options.
    pub engine: EngineArgs,
    /// Caches.
    pub cache: CacheArgs,
    /// Stored responses.
    pub responses: ResponseConfig,
    /// MCP servers.
    pub tools: ToolConfig,
    /// Files and batches.
    pub files: FileConfig,
    /// Size and time limits.
    pub limits: LimitConfig,
}

/// See [`crate::args::LimitArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitConfig {
    /// The maximum number of open connections.
    pub max_connections: usize,
    /// The maximum size of a request body.
    pub max_body: ByteSize,
    /// The memory for the bodies of all requests together.
    pub body_memory: ByteSize,
    /// The maximum number of answers per request.
    pub max_choices: usize,
    /// The maximum number of inputs per embedding or rerank request.
    pub max_inputs: usize,
    /// The time to receive the head of a request.
    pub header_timeout: Seconds,
    /// The time to receive the body of a request.
    pub body_timeout: Seconds,
    /// The time after which a client that reads nothing of its response is disconnected.
    pub stream_idle_timeout: Seconds,
    /// The maximum time between two events or comments of a stream.
    pub keep_alive: Seconds,
    /// The time for running requests to finish after a stop signal.
    pub shutdown_timeout: Seconds,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_body: ByteSize(16 << 20),
            body_memory: ByteSize(256 << 20),
            max_choices: 128,
            max_inputs: 2048,
            header_timeout: Seconds(30.0),
            body_timeout: Seconds(60.0),
            stream_idle_timeout: Seconds(60.0),
            keep_alive: Seconds(10.0),
            shutdown_timeout: Seconds(30.0),
        }
    }
}

impl Config {
    /// Returns the checked settings for these arguments.
    pub fn resolve(args: &ServeArgs) -> Result<Self, StartError> {
        let mut table = match &args.config {
            None => Table::new(),
            Some(path) => file(&expanded(path))?,
        };
        overlay(&mut table, flags(&args.settings)?);
        let mut config: Self =
            table.try_into().map_err(|error: toml::de::Error| StartError(error.message().to_owned()))?;
        config.engine = config.engine.or_default();
        config.expand_paths();
        config.read_keys()?;
        config.network.use_standard_collector();
        config.check()?;
        Ok(config)
    }

    /// Returns the settings as a file for `--config`. API keys are hidden.
    ///
    /// # Panics
    /// Never: every setting has a form in TOML.
    pub fn to_toml(&self) -> String {
        let mut redacted = self.clone();
        if !redacted.network.api_key.is_empty() {
            redacted.network.api_key = vec!["(not shown)".to_owned(); redacted.network.api_key.len()];
        }
        toml::to_string(&redacted).expect("every setting has a form in TOML")
    }

    /// Returns the options of the engines.
    pub fn engine_options(&self) -> EngineOptions {
        // Clients with different keys need not trust each other, so they share no prefixes.
        let share_prefixes = !self.network.has_keys();
        let mut options = EngineOptions { share_prefixes, ..EngineOptions::default() };
        self.engine.apply(&mut options);
        self.cache.apply(&mut options);
        options
    }

    /// Returns the address to listen on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.network.host, self.network.port)
    }

    /// Checks that the folder of the prompt cache is writable, so that the server fails at startup, not at a request.
    pub fn check_prompt_cache(&self) -> Result<(), StartError> {
        let Some(folder) = &self.cache.prefix.prompt_cache_dir else { return Ok(()) };
        let about = |error| StartError::new(format_args!("--prompt-cache-dir: {}", folder.display()), error);
        let trial = folder.join(format!("trial-{}", std::process::id()));
        create_private_folder(folder).map_err(|error| StartError::new("--prompt-cache-dir", error))?;
        std::fs::write(&trial, "x").map_err(about)?;
        std::fs::remove_file(&trial).map_err(about)
    }

    /// Opens the client identities. Their secret is in the folders of the journal, the prompt cache and the files.
    pub(crate) fn identities(&self) -> Result<Identities, StartError> {
        let folders = [&self.responses.journal, &self.cache.prefix.prompt_cache_dir, &self.files.files_dir];
        let folders: Vec<&Path> = folders.into_iter().flatten().map(AsRef::as_ref).collect();
        Identities::open(&folders)
            .map_err(|error| StartError::new("cannot open the secret for client identities", error))
    }

    /// Expands `~` and variables in paths. No shell expands those from a file or a service manager.
    fn expand_paths(&mut self) {
        let cache = &mut self.cache.prefix.prompt_cache_dir;
        let NetworkConfig { api_key_file, keys, tls_cert, tls_key, .. } = &mut self.network;
        let network = [api_key_file, keys, tls_cert, tls_key];
        let folders = [&mut self.responses.journal, &mut self.files.files_dir, cache];
        let others = [&mut self.tools.mcp, &mut self.models.profiles];
        for path in network.into_iter().chain(folders).chain(others).flatten() {
            *path = expanded(path);
        }
        for path in &mut self.models.models_dir {
            *path = expanded(path);
        }
    }

    fn read_keys(&mut self) -> Result<(), StartError> {
        let Some(path) = &self.network.api_key_file else { return Ok(()) };
        let text = std::fs::read_to_string(path).map_err(|error| StartError::new(path.display(), error))?;
        let mut keys = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
        if keys.peek().is_none() {
            return Err(StartError::new(path.display(), "has no key; write one key in each line"));
        }
        self.network.api_key.extend(keys.map(str::to_owned));
        Ok(())
    }

    fn check(&self) -> Result<(), StartError> {
        let say = |what: &str, reason: &str| Err(StartError::new(what, reason));
        self.network
            .check()
            .and_then(|()| self.tools.check(self.network.has_keys()))
            .and_then(|()| self.models.check())
            .map_err(|(flag, reason)| StartError::new(flag, reason))?;
        self.engine
            .queue
            .check()
            .and_then(|()| self.cache.check())
            .map_err(|(flag, reason)| StartError::new(flag, reason))?;
        for (flag, count) in [
            ("--max-connections", self.limits.max_connections),
            ("--max-choices", self.limits.max_choices),
            ("--max-inputs", self.limits.max_inputs),
            ("--batch-lines", self.files.batch_lines),
        ] {
            if count == 0 {
                return say(flag, "is 0; at least one must be allowed");
            }
        }
        if self.limits.body_memory.0 < self.limits.max_body.0 {
            return say("--body-memory", "is less than --max-body; the largest body must fit");
        }
        let positive = [
            ("--header-timeout", self.limits.header_timeout),
            ("--body-timeout", self.limits.body_timeout),
            ("--stream-idle-timeout", self.limits.stream_idle_timeout),
            ("--keep-alive", self.limits.keep_alive),
        ];
        match positive.iter().find(|(_, time)| time.0 <= 0.0) {
            Some((flag, _)) => say(flag, "is 0; give a number of seconds"),
            None => Ok(()),
        }
    }
}

fn file(path: &Path) -> Result<Table, StartError> {
    let about = |error: &dyn std::fmt::Display| StartError::new(path.display(), error);
    let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| about(&error.message()))?;
    // Checked before it is merged with the other sources, so that an error names this file.
    table.clone().try_into::<Config>().map_err(|error: toml::de::Error| about(&error.message()))?;
    Ok(table)
}

fn flags(settings: &Settings) -> Result<Table, StartError> {
    Table::try_from(settings).map_err(|error| StartError::new("flags", error))
}

/// Overwrites the values of `lower` with those of `upper`, table by table.
fn overlay(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(lower)), Value::Table(upper)) => overlay(lower, upper),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mlx_core::weights::FloatPolicy;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn resolve(arguments: &[&str]) -> Result<Config, String> {
        let program = Program::try_parse_from([&["mlx-server"], arguments].concat());
        Config::resolve(&program.map_err(|error| error.to_string())?.serve).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server.toml");
        let text = "[network]\nport = 9000\napi-key = ['k']\n[limits]\nmax-body = '2MB'\nkeep-alive = 3\n\
            [engine]\nexact = true\nmemory-budget = 1000\n";
        std::fs::write(&path, text).expect("writes");
        let path = path.to_str().expect("utf-8");
        let config = resolve(&["--config", path, "--port", "9001", "--exact=false", "--dtype", "bf16"])
            .expect("valid");
        assert_eq!(config.engine_options().dtype, Some(FloatPolicy::Bf16));
        assert_eq!((config.network.port, config.limits.max_body.0), (9001, 2_000_000));
        assert_eq!(config.limits.keep_alive, Seconds(3.0));
        assert_eq!(config.engine.exact.exact, Some(false));
        assert_eq!(config.engine.load.memory_budget, Some(ByteSize(1000)));
        assert!(!config.engine_options().share_prefixes, "it has a key");
        assert_eq!(config.limits.shutdown_timeout, Seconds(30.0));
    }

    #[test]
    fn paths_in_a_file_are_expanded() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server.toml");
        let text = "[responses]\njournal = '~/journal'\n[cache]\nprompt-cache-dir = '${HOME}/prompts'\n";
        std::fs::write(&path, text).expect("writes");
        let config = resolve(&["--config", path.to_str().expect("utf-8")]).expect("valid");
        let home = std::env::home_dir().expect("the tests run as someone");
        assert_eq!(config.responses.journal, Some(home.join("journal")));
        assert_eq!(config.cache.prefix.prompt_cache_dir, Some(home.join("prompts")));
    }

    #[test]
    fn what_is_printed_can_be_read_again_and_hides_keys() {
        let arguments = [
            "-m",
            "a=b",
            "--api-key",
            "geheim",
            "--models-budget",
            "8GB",
            "--idle-timeout",
            "0.5",
            "--dtype",
            "bf16",
        ];
        let config = resolve(&arguments).expect("valid");
        let printed = config.to_toml();
        assert!(!printed.contains("geheim"), "{printed}");
        let mut reparsed: Config = toml::from_str(&printed).expect("the same form");
        reparsed.network.api_key = config.network.api_key.clone();
        assert_eq!(reparsed, config);
    }

    #[test]
    fn unsafe_and_senseless_settings_are_refused_by_name() {
        for (arguments, word) in [
            (&["--host", "0.0.0.0"][..], "--api-key"),
            (&["--host", "0.0.0.0", "--api-key", " "], "--api-key"),
            (&["--host", "0.0.0.0", "--api-key", "0123456789abcde"], "at least 16 characters"),
            (&["--host", "::", "--api-key", "0123456789abcdef", "--api-key", "k"], "at least 16 characters"),
            (&["--host", "nowhere"], "nowhere"),
            (&["--max-connections", "0"], "--max-connections"),
            (&["--max-running", "0"], "--max-running"),
            (&["--max-waiting", "0"], "--max-waiting"),
            (&["--batch-lines", "0"], "--batch-lines"),
            (&["--otlp-endpoint", "localhost:4318"], "--otlp-endpoint"),
            (&["--cors-origin", "*"], "--cors-origin: \"*\""),
            (&["--cors-origin", "https://a.example/"], "without a path"),
            (&["--cors-origin", "a.example"], "https://"),
            (&["--cors-origin", "https://A.example"], "small letters"),
            (&["--cors-origin", "https://a example"], "--cors-origin"),
            (&["--allow-image-urls", "https://a.example"], "--allow-image-urls: \"https://a.example\""),
            (&["--allow-image-urls", "a.example,b.example:0"], "b.example:0"),
            (&["--allow-image-urls", "a.example:"], "a.example:"),
            (&["--allow-image-urls", "*.example"], "*.example"),
            (&["--allow-image-urls", ""], "--allow-image-urls"),
            (&["--keep-alive", "0"], "--keep-alive"),
            (&["--mcp", "mcp.json"], "--mcp: lets clients run programs"),
            (&["--mcp-timeout", "0"], "--mcp-timeout"),
            (&["--allow-mcp-urls", "https://a.example"], "--allow-mcp-urls: \"https://a.example\""),
            (&["--allow-mcp-urls", "a.example"], "--api-key"),
            (&["--prompt-cache-size", "1GB"], "--prompt-cache-dir"),
            (&["--prompt-cache-dir", "a", "--prefix-cache", "0"], "--prefix-cache"),
            (&["--max-body", "much"], "--max-body"),
            (&["--max-body", "2GB"], "--body-memory"),
            (&["--config", "no-such-file.toml"], "no-such-file.toml"),
            (&["--api-key-file", "no-such-file"], "no-such-file"),
        ] {
            let message = resolve(arguments).expect_err("it must be refused");
            assert!(message.contains(word), "{message}");
        }
        assert!(resolve(&["--host", "0.0.0.0", "--api-key", "0123456789abcdef"]).is_ok());
        assert!(resolve(&["--api-key", "k"]).is_ok());
        assert!(resolve(&["--host", "::1"]).is_ok());
        let hosts = resolve(&[
            "--allow-image-urls",
            "a.example,93.184.216.34,b.example:8443",
            "--allow-image-urls",
            "[2606:4700::1],[2606:4700::1]:443",
        ]);
        assert_eq!(hosts.expect("valid").network.allow_image_urls.len(), 5);
        for origin in
            ["https://a.example", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"]
        {
            assert!(resolve(&["--cors-origin", origin]).is_ok(), "{origin}");
        }
    }

    #[test]
    fn mistakes_in_a_file_are_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server.toml");
        for (text, word) in [
            ("[network]\nprot = 1", "prot"),
            ("[limits]\nmax-body = 'x'", "size"),
            ("[", ""),
            ("[engine]\nmax-runing = 4", "max-runing"),
            ("[cache]\nkv-bit = 4", "kv-bit"),
        ] {
            std::fs::write(&path, text).expect("writes");
            let message = resolve(&["--config", path.to_str().expect("utf-8")]).expect_err("refused");
            assert!(message.contains("server.toml") && message.contains(word), "{message}");
        }
    }
}
