//! Requests to a running server, for the commands that manage it.

use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

use crate::exit_code::Failure;
use crate::terminal;

/// The server of a command.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://localhost:8080")]
    url: String,

    /// API key of the server, if it needs one
    #[arg(long, value_name = "KEY", env = "MLX_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}

impl ServerArgs {
    /// Returns the URL without the path of an API.
    pub(crate) fn base(&self) -> &str {
        self.url.trim_end_matches('/').trim_end_matches("/v1")
    }

    /// Returns the models of the server.
    pub(crate) fn models(&self, timeout: Duration) -> Result<Vec<Value>, Failure> {
        let request = agent(timeout).get(format!("{}/v1/models", self.base()));
        let list = self.read(self.with_key(request).call(), "get the models of")?;
        let models = list["data"].as_array();
        models.cloned().ok_or_else(|| self.failed("get the models of", "its response has no list"))
    }

    /// Sends a request about models. Returns the answer.
    pub(crate) fn post(&self, path: &str, body: &Value, timeout: Duration) -> Result<Value, Failure> {
        let request = agent(timeout).post(format!("{}{path}", self.base()));
        let request = self.with_key(request).header("Content-Type", "application/json");
        self.read(request.send(body.to_string()), "reach")
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.api_key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn read(&self, answer: Result<Response<Body>, ureq::Error>, task: &str) -> Result<Value, Failure> {
        let failed = |reason: &str| self.failed(task, reason);
        let mut response = answer.map_err(|error| match error {
            ureq::Error::ConnectionFailed => self.absent(),
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => self.absent(),
            other => failed(&other.to_string()),
        })?;
        let text = response.body_mut().read_to_string().map_err(|error| failed(&error.to_string()))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(fail(&format!("{} requires an API key; pass it with --api-key", self.base())));
        }
        let value: Value = serde_json::from_str(&text).map_err(|_| failed("its response is not JSON"))?;
        match value["error"]["message"].as_str() {
            Some(message) => Err(fail(message)),
            None => Ok(value),
        }
    }

    fn absent(&self) -> Failure {
        let url = self.base();
        fail(&format!("no server runs at {url}; start one with `mlx serve`, or give its address with --url"))
    }

    fn failed(&self, task: &str, reason: &str) -> Failure {
        let url = self.base();
        fail(&format!(
            "cannot {task} {url}: {reason}; start a server with `mlx serve`, or give its address with --url"
        ))
    }
}

fn agent(timeout: Duration) -> Agent {
    Agent::config_builder().timeout_global(Some(timeout)).http_status_as_error(false).build().into()
}

/// Reports an error.
pub(crate) fn fail(message: &str) -> Failure {
    terminal::note(&format!("error: {message}"));
    Failure::Reported
}
