//! Reads the body of a request within its limits, and parses it without blocking other requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use mlx_core::engine::Client;
use mlx_options::ByteSize;

use crate::body_memory::{Charge, parsed_bytes};
use crate::client;
use crate::error::ApiError;
use crate::fields::{Fields, unsupported_field};
use crate::generation::Origin;
use crate::request_guard::RequestGuard;
use crate::request_log::{RequestId, RequestNotes};
use crate::state::AppState;
use crate::work::SHORT_BODY_LEN;

/// The time limit for reading the remainder of a rejected body.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads and parses the body of a request.
pub(super) async fn read<T: Send + 'static>(
    state: &AppState,
    request: Request,
    read: fn(&mut Fields) -> Result<T, ApiError>,
) -> Result<(T, RequestGuard), ApiError> {
    let limits = &state.config.limits;
    let notes = RequestNotes::from_request(&request);
    let origin = Origin { client: client::from_request(&request), id: RequestId::from_request(&request) };
    let read = reader_with_unused(read, state.config.network.strict);
    let mut charge = state.bodies.charge();
    let timeout = limits.body_timeout.duration();
    let limit = BodyLimit { bytes: limits.max_body, flag: "--max-body" };
    let body = collect(request.into_body(), limit, timeout, &mut charge).await?;
    let bytes = body.len();
    let images = Arc::clone(&state.image_urls);
    let parse = move || -> Result<_, ApiError> {
        let charged = if bytes < SHORT_BODY_LEN { bytes as u64 } else { parsed_bytes(&body) };
        charge.set(charged)?;
        let mut fields = Fields::parse(&body)?;
        let parsed = if images.needs_fetch(&mut fields) {
            Parsed::WithUrls(fields, charged)
        } else {
            Parsed::Read(read(fields)?)
        };
        Ok((parsed, charge))
    };
    let (parsed, mut charge) = compute(state, origin.client, bytes, parse).await?;
    let (request, bytes) = match parsed {
        Parsed::Read(request) => (request, bytes),
        Parsed::WithUrls(mut fields, charged) => {
            let room = limits.max_body.0.saturating_sub(bytes as u64);
            let fetched = state.image_urls.insert(&mut fields, room, &state.bodies).await?;
            charge.set(charged + fetched as u64)?;
            let bytes = bytes + fetched;
            (compute(state, origin.client, bytes, move || read(fields)).await?, bytes)
        }
    };
    let (request, unused) = request;
    notes.add_ignored(&unused);
    Ok((request, RequestGuard::new(state, charge, bytes, origin)))
}

/// Wraps `read` to return the names of unused fields too. A strict server rejects requests with unused fields.
pub(super) fn reader_with_unused<T>(
    read: fn(&mut Fields) -> Result<T, ApiError>,
    is_strict: bool,
) -> impl Fn(Fields) -> Result<(T, Vec<String>), ApiError> + Copy + Send + 'static
where
    T: 'static,
{
    move |mut fields| {
        let request = read(&mut fields)?;
        let unused = fields.into_unused();
        match unused.first().filter(|_| is_strict) {
            Some(name) => Err(unsupported_field(
                name,
                "is not used here, and the server runs with --strict; remove it or check the spelling",
            )),
            None => Ok((request, unused)),
        }
    }
}

/// A parsed body.
enum Parsed<T> {
    /// The request.
    Read(T),
    /// The fields of a request with image URLs to fetch, and their size in memory.
    WithUrls(Fields, u64),
}

/// Runs the work: short bodies immediately, longer ones on a blocking thread.
async fn compute<T: Send + 'static>(
    state: &AppState,
    client: Client,
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes < SHORT_BODY_LEN { work() } else { state.cpu_slots.run(client, bytes, move |_| work()).await }
}

/// The maximum length of a body.
#[derive(Clone, Copy)]
pub(super) struct BodyLimit {
    pub(super) bytes: ByteSize,
    /// The flag that sets it.
    pub(super) flag: &'static str,
}

impl BodyLimit {
    fn exceeded(self) -> ApiError {
        ApiError::body_too_large(self.bytes, self.flag)
    }
}

/// Returns the error for a body that does not arrive in time.
pub(super) fn too_slow() -> ApiError {
    let message = "the body did not arrive within --body-timeout";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
}

/// Collects the bytes of a body. Each frame is charged before it is stored.
pub(super) async fn collect(
    mut body: Body,
    max_len: BodyLimit,
    timeout: Duration,
    charge: &mut Charge,
) -> Result<Vec<u8>, ApiError> {
    let limit = usize::try_from(max_len.bytes.0).unwrap_or(usize::MAX);
    // The announced length, before the client sends the body.
    if body.size_hint().lower() > max_len.bytes.0 {
        return Err(max_len.exceeded());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(body.size_hint().lower()).unwrap_or(0));
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::body(format!("reading the body failed: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(max_len.exceeded());
            }
            charge.set((bytes.len() + data.len()) as u64)?;
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    let outcome = tokio::time::timeout(timeout, all).await;
    let error = match outcome {
        Ok(Ok(())) => return Ok(bytes),
        Ok(Err(error)) => error,
        Err(_) => return Err(too_slow()),
    };
    drop(bytes);
    charge.set(0)?;
    // Drain the body: a client that is still sending would not read the response.
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::time::timeout(timeout.min(DRAIN_TIMEOUT), rest).await.ok();
    Err(error)
}
