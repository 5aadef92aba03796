//! `POST /api/pull`: downloads a model, by Ollama's API.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream::{once, unfold};
use serde::Serialize;
use tokio::time::timeout;

use super::body::read;
use super::response::{event_stream, json, to_json};
use crate::answer::AnswerWriter;
use crate::downloads::{DownloadEvent, DownloadEvents};
use crate::error::ApiError;
use crate::models::Models;
use crate::protocol::ollama::error::OllamaError;
use crate::protocol::ollama::pull::{PullRequest, PullStatus};
use crate::protocol::ollama::writer::Writer;
use crate::state::AppState;

/// Downloads a model from the Hugging Face Hub to the server's machine. Closing the connection cancels the download; the next one continues it.
#[utoipa::path(
    post, path = "/api/pull", tag = "ollama",
    request_body = PullRequest,
    responses((status = 200, body = PullStatus), (status = "4XX", body = OllamaError), (status = "5XX", body = OllamaError))
)]
pub(crate) async fn pull(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    if !state.allows_pull() {
        let message = "downloads are off; start the server with --allow-pull, or run mlx pull on its machine";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message));
    }
    let (PullRequest { name, is_streamed }, guard) = read(&state, request, PullRequest::read).await?;
    drop(guard);
    let events = state.downloads.start(name, &state.shutdown.draining).await?;
    let keep_alive = state.config.limits.keep_alive.duration();
    let mut lines =
        Lines { events, models: Arc::clone(&state.models), keep_alive, latest: PullStatus::beginning() };
    if is_streamed {
        return Ok(streamed(lines));
    }
    while let Some(line) = lines.next().await {
        line.map_err(|reason| ApiError::new(StatusCode::BAD_GATEWAY, "download_failed", reason))?;
    }
    Ok(json(lines.latest))
}

/// The lines about a download.
struct Lines {
    events: DownloadEvents,
    models: Arc<Models>,
    /// The time without an event after which the latest line is repeated, so that proxies keep the connection open.
    keep_alive: Duration,
    latest: PullStatus,
}

impl Lines {
    /// Returns the next line, or an error for a download that failed; `None` after the last line.
    async fn next(&mut self) -> Option<Result<PullStatus, String>> {
        let Ok(event) = timeout(self.keep_alive, self.events.next()).await else {
            return Some(Ok(self.latest.clone()));
        };
        let event = event?;
        if matches!(event, DownloadEvent::Complete(_)) {
            // The next request may name the model.
            self.models.renew().await;
        }
        let line = PullStatus::of(event);
        if let Ok(line) = &line {
            self.latest = line.clone();
        }
        Some(line)
    }
}

/// Returns the response with a line for each event. Dropping it, as hyper does when the client disconnects, cancels the download.
fn streamed(lines: Lines) -> Response {
    let first = line_bytes(&lines.latest);
    let first = once(ready(Ok::<_, Infallible>(first)));
    let others = unfold(lines, |mut lines| async move {
        let bytes = match lines.next().await? {
            Ok(line) => line_bytes(&line),
            Err(error) => line_bytes(&OllamaError { error }),
        };
        Some((Ok(bytes), lines))
    });
    let mut response = Body::from_stream(first.chain(others)).into_response();
    event_stream(response.headers_mut(), Writer::STREAM_TYPE);
    response
}

fn line_bytes<T: Serialize>(line: &T) -> Bytes {
    let mut bytes = to_json(line);
    bytes.push(b'\n');
    bytes.into()
}
