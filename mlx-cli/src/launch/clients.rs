//! Data about supported clients: the environment variables and arguments that point each at the server.

use serde_json::{Value, json};

/// The server's parameters for a client.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// The base URL, such as `http://localhost:8080`.
    pub(super) url: String,
    /// The name of the model on the server.
    pub(super) model: String,
    /// The context length of the model, if the server reports it.
    pub(super) context: Option<u64>,
    /// The API key; any text for a server without keys.
    pub(super) key: String,
}

/// A supported client.
#[derive(Debug)]
pub(super) struct Client {
    /// The name on the command line, which is also the program's.
    pub(super) name: &'static str,
    /// The command that installs it.
    pub(super) package: &'static str,
    /// Environment variables.
    pub(super) environment: fn(&Server) -> Vec<(&'static str, String)>,
    /// Arguments that precede the user's.
    pub(super) arguments: fn(&Server) -> Vec<String>,
}

/// All supported clients.
pub(super) const CLIENTS: [Client; 5] = [
    Client {
        name: "claude",
        package: "npm install -g @anthropic-ai/claude-code",
        environment: claude,
        arguments: |_| Vec::new(),
    },
    Client {
        name: "codex",
        package: "npm install -g @openai/codex",
        environment: |server| vec![("MLX_LAUNCH_KEY", server.key.clone())],
        arguments: codex,
    },
    Client {
        name: "opencode",
        package: "npm install -g opencode-ai",
        environment: |server| vec![("OPENCODE_CONFIG_CONTENT", opencode(server).to_string())],
        arguments: |_| Vec::new(),
    },
    Client {
        name: "qwen",
        package: "npm install -g @qwen-code/qwen-code",
        environment: |server| {
            let url = format!("{}/v1", server.url);
            vec![
                ("OPENAI_BASE_URL", url),
                ("OPENAI_API_KEY", server.key.clone()),
                ("OPENAI_MODEL", server.model.clone()),
            ]
        },
        arguments: |_| vec!["--auth-type".into(), "openai".into()],
    },
    Client {
        name: "aider",
        package: "pip install aider-chat",
        environment: |server| {
            vec![("OPENAI_API_BASE", format!("{}/v1", server.url)), ("OPENAI_API_KEY", server.key.clone())]
        },
        arguments: |server| vec!["--model".into(), format!("openai/{}", server.model)],
    },
];

/// Configures Claude Code, which assumes a context of a million tokens for an unknown model.
fn claude(server: &Server) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("ANTHROPIC_BASE_URL", server.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", server.key.clone()),
        ("ANTHROPIC_MODEL", server.model.clone()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", server.model.clone()),
    ];
    environment.extend(server.context.map(|context| ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", context.to_string())));
    environment
}

fn codex(server: &Server) -> Vec<String> {
    let text = |value: &str| Value::from(value).to_string();
    let provider = format!(
        "{{name=\"mlx\",base_url={},wire_api=\"responses\",env_key=\"MLX_LAUNCH_KEY\"}}",
        text(&format!("{}/v1", server.url))
    );
    let mut settings = vec![
        format!("model={}", text(&server.model)),
        "model_provider=\"mlx\"".to_owned(),
        format!("model_providers.mlx={provider}"),
    ];
    settings.extend(server.context.map(|context| format!("model_context_window={context}")));
    settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

fn opencode(server: &Server) -> Value {
    let mut model = json!({"name": server.model});
    if let Some(context) = server.context {
        // The client reserves tokens for the answer.
        model["limit"] = json!({"context": context, "output": (context / 4).min(32_000)});
    }
    let name = format!("mlx/{}", server.model);
    json!({
        "model": name,
        "small_model": name,
        "provider": {"mlx": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mlx",
            "options": {"baseURL": format!("{}/v1", server.url), "apiKey": server.key},
            "models": {server.model.clone(): model},
        }},
    })
}
