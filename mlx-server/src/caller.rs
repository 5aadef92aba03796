//! The senders of requests that run tools. Invariant: a tool runs only for a request that [`Caller::check`] has allowed, since a call may run
//! programs with the permissions of this process (docs/decisions/0071-who-may-run-tools.md).

use axum::extract::Request;
use axum::http::StatusCode;
use mlx_core::engine::Client;

use crate::error::ApiError;
use crate::state::AppState;
use crate::{auth, client};

/// The sender of a request that runs tools.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    client: Client,
    /// An error if the request comes from a web page of another origin.
    page: Result<(), ApiError>,
}

impl Caller {
    /// Returns the sender of a request.
    pub(crate) fn from_request(request: &Request) -> Self {
        let page = auth::check_own_page(request.headers(), request.uri());
        Self { client: client::from_request(request), page }
    }

    /// Rejects web pages of other origins, and named keys that may not run tools.
    pub(crate) fn check(&self, state: &AppState) -> Result<(), ApiError> {
        if let Err(error) = &self.page {
            return Err(error.clone());
        }
        if state.keys.may_run_tools(self.client) {
            return Ok(());
        }
        let message = "this API key may not run tools; set tools = true for it in the file of --keys";
        Err(ApiError::new(StatusCode::FORBIDDEN, "tools_not_allowed", message))
    }
}
