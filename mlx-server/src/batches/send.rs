//! Sends the request of a line to its endpoint, on the path of an HTTP request: the routes read it, answer it, log it and count it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use mlx_core::engine::Client;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::line::{Entry, LineError, LineResponse};
use crate::ids::random_id;
use crate::request_log::{IGNORED, REQUEST_ID};
use crate::state::AppState;

/// The number of attempts for a line while the server cannot answer for another reason than its load.
const ATTEMPTS: u32 = 5;
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Sends the requests of a batch.
#[derive(Clone)]
pub(super) struct Sender {
    state: AppState,
    app: Router,
    client: Client,
    endpoint: String,
    /// One permit per line that the server answers at the same time.
    slots: Arc<Semaphore>,
}

impl Sender {
    /// Returns a sender for a client's requests to an endpoint.
    pub(super) fn new(
        state: &AppState,
        app: Router,
        client: Client,
        endpoint: &str,
        slots: Arc<Semaphore>,
    ) -> Self {
        Self { state: state.clone(), app, client, endpoint: endpoint.to_owned(), slots }
    }

    /// Sends the request of a line until it has a response. Waits while the client's key is over its limit and while the server is busy. A line
    /// that waits holds no slot, so lines of other clients run.
    pub(super) async fn send(self, line: u64, custom_id: String, body: Vec<u8>) -> Entry {
        let id = format!("batch_req_{}", random_id());
        let mut attempt = 0;
        while let Err(wait) = self.state.keys.admit_client(self.client, &self.state.identities) {
            tokio::time::sleep(wait).await;
        }
        loop {
            // The semaphore is never closed.
            let slot = self.slots.acquire().await;
            let response = self.attempt(&id, body.clone()).await;
            let pause = match response.status() {
                StatusCode::TOO_MANY_REQUESTS => retry_after(response.headers()),
                StatusCode::SERVICE_UNAVAILABLE if attempt < ATTEMPTS => Duration::from_secs(1 << attempt),
                _ => return entry(id, line, custom_id, response).await,
            };
            drop(slot);
            attempt += u32::from(response.status() == StatusCode::SERVICE_UNAVAILABLE);
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, id: &str, body: Vec<u8>) -> Response {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        // The endpoint is one of a fixed list of paths, and the id has letters and digits.
        *request.uri_mut() = self.endpoint.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/json"));
        headers.extend(id.parse().ok().map(|id| (REQUEST_ID.parse().ok(), id)));
        request.extensions_mut().insert(self.client);
        let Ok(response) = self.app.clone().oneshot(request).await;
        response
    }
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1)).min(MAX_PAUSE)
}

async fn entry(id: String, line: u64, custom_id: String, response: Response) -> Entry {
    let status_code = response.status().as_u16();
    let ignored = response.headers().get(IGNORED).and_then(|names| names.to_str().ok()).map(str::to_owned);
    let entry = Entry { id: id.clone(), line, custom_id: Some(custom_id), response: None, error: None };
    let body = response.into_body().collect().await.map(|body| body.to_bytes().to_vec());
    let body = body.ok().and_then(|body| String::from_utf8(body).ok());
    match body.and_then(|body| RawValue::from_string(body).ok()) {
        Some(body) => {
            let response = LineResponse { status_code, request_id: id, ignored_fields: ignored, body };
            Entry { response: Some(response), ..entry }
        }
        None => Entry {
            error: Some(LineError::new(line, "generation_failed", "the answer is not JSON")),
            ..entry
        },
    }
}
