//! The body of a request: reading it within its limits, and parsing it where that blocks no other request.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::state::AppState;

/// Bodies from this size on are parsed on a blocking thread.
const LARGE_BODY: usize = 64 << 10;

/// Reads and parses the body of a request.
pub(super) async fn read<T: Send + 'static>(
    state: &AppState,
    request: Request,
    read: fn(Fields) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let limits = &state.config.limits;
    let limit = usize::try_from(limits.max_body.0).unwrap_or(usize::MAX);
    let body = Limited::new(request.into_body(), limit).collect();
    let body = match tokio::time::timeout(limits.body_timeout.duration(), body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let message = format!("the body is larger than {}", limits.max_body);
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        Ok(Err(error)) => return Err(ApiError::body(format!("reading the body failed: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time";
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
        }
    };
    if body.len() < LARGE_BODY {
        return Fields::parse(&body).and_then(read);
    }
    blocking(state, move || Fields::parse(&body).and_then(read)).await
}

/// Runs long computations on a blocking thread once a permit is free. A client that disconnects earlier gives up its
/// place in the queue.
pub(super) async fn blocking<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&state.permits).acquire_owned().await;
    let work = move || {
        // The permit is held until the work ends, even if the client has disconnected.
        let _permit = permit;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The panic has been logged already.
        Err(_) => Err(ApiError::failed("internal error while preparing the request; see the server's log")),
    }
}
