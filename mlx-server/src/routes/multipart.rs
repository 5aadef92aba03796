//! Reads forms with a file, within the limits of bodies.

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use mlx_json::Value;
use mlx_options::ByteSize;
use tokio::runtime::Handle;

use super::body::{BodyLimit, collect, reader_with_unused};
use super::form::{FileReceiver, Form};
use crate::client;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Origin;
use crate::request_guard::RequestGuard;
use crate::request_log::{RequestId, RequestNotes};
use crate::state::AppState;
use crate::work::SHORT_BODY_LEN;

/// Reads a form with the part `file`. The request sees the name of the file in its place. `value` converts the texts of other parts.
pub(super) async fn read<T: Send + 'static>(
    state: &AppState,
    request: Request,
    value: fn(&str, String) -> Value,
    read: fn(&mut Fields) -> Result<T, ApiError>,
) -> Result<(T, Bytes, RequestGuard), ApiError> {
    let limits = &state.config.limits;
    let notes = RequestNotes::from_request(&request);
    let origin = Origin { client: client::from_request(&request), id: RequestId::from_request(&request) };
    let mut charge = state.bodies.charge();
    // Files are larger than text.
    let half = ByteSize(limits.body_memory.0 / 2);
    let limit = if half > limits.max_body {
        BodyLimit { bytes: half, flag: "half of --body-memory" }
    } else {
        BodyLimit { bytes: limits.max_body, flag: "--max-body" }
    };
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("multipart/form-data") {
        return Err(ApiError::body("the body must be multipart/form-data with the part `file`"));
    }
    let timeout = limits.body_timeout.duration();
    let body = collect(body, limit, timeout, &mut charge).await?;
    // The form is split into parts that share the memory of the body, or copy it once.
    let bytes = body.len();
    charge.set(2 * bytes as u64)?;
    // A short file can take long to decode, so it never runs in the slots of short requests.
    let mut guard = RequestGuard::new(state, charge, bytes.max(SHORT_BODY_LEN), origin);
    let (runtime, read) = (Handle::current(), reader_with_unused(read, state.config.network.strict));
    let split = move |_: &_| {
        let mut file = InMemory::default();
        let fields = runtime.block_on(async {
            Form::new(Request::from_parts(parts, body.into()), timeout).await?.fields(value, &mut file).await
        })?;
        Ok((read(fields)?, file.is_complete.then(|| Bytes::from(file.bytes))))
    };
    let ((request, unused), file) = guard.run(split).await?;
    notes.add_ignored(&unused);
    let file = file.ok_or_else(|| ApiError::field("file", "is missing; give an audio file"))?;
    guard.set_bytes(file.len())?;
    Ok((request, file, guard))
}

/// Keeps the file of a form in memory.
#[derive(Default)]
struct InMemory {
    bytes: Vec<u8>,
    /// True once the whole file is here.
    is_complete: bool,
}

impl FileReceiver for InMemory {
    async fn take(&mut self, chunk: Option<Bytes>) -> Result<(), ApiError> {
        match chunk {
            Some(chunk) => self.bytes.extend_from_slice(&chunk),
            None => self.is_complete = true,
        }
        Ok(())
    }
}
