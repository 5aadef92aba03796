//! Reads forms with a file, within the limits of bodies.

use axum::extract::{FromRequest, Multipart, Request};
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use mlx_json::{Map, Value};
use mlx_options::ByteSize;
use tokio::runtime::Handle;

use super::body::{BodyLimit, collect, reader_with_unused};
use crate::client;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Origin;
use crate::request_guard::RequestGuard;
use crate::request_log::{RequestId, RequestNotes};
use crate::state::AppState;
use crate::work::SHORT_BODY_LEN;

/// The maximum number of parts of a form.
const MAX_PARTS: usize = 64;

/// The maximum bytes of a part that is not the file.
const MAX_TEXT: usize = 64 << 10;

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
    let body = collect(body, limit, limits.body_timeout.duration(), &mut charge).await?;
    // The form is split into parts that share the memory of the body, or copy it once.
    let bytes = body.len();
    charge.set(2 * bytes as u64)?;
    // A short file can take long to decode, so it never runs in the slots of short requests.
    let mut guard = RequestGuard::new(state, charge, bytes.max(SHORT_BODY_LEN), origin);
    let (runtime, read) = (Handle::current(), reader_with_unused(read, state.config.network.strict));
    let split = move |_: &_| {
        let (fields, file) = runtime.block_on(fields(Request::from_parts(parts, body.into()), value))?;
        Ok((read(fields)?, file))
    };
    let ((request, unused), file) = guard.run(split).await?;
    notes.add_ignored(&unused);
    let file = file.ok_or_else(|| ApiError::field("file", "is missing; give an audio file"))?;
    guard.set_bytes(file.len())?;
    Ok((request, file, guard))
}

/// Returns the texts of a form as fields, and its file. A name that ends in `[]` is a list.
async fn fields(
    request: Request,
    value: fn(&str, String) -> Value,
) -> Result<(Fields, Option<Bytes>), ApiError> {
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| ApiError::body(format!("the body is not a form: {error}")))?;
    let broken = |error: axum::extract::multipart::MultipartError| {
        ApiError::body(format!("the form is not complete: {}", error.body_text()))
    };
    let (mut all, mut file, mut count) = (Map::new(), None, 0);
    while let Some(part) = form.next_field().await.map_err(broken)? {
        count += 1;
        if count > MAX_PARTS {
            return Err(ApiError::body(format!("the form has more than {MAX_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_owned();
        if all.contains_key(&name) {
            return Err(ApiError::field(name, "occurs twice in the form"));
        }
        if name == "file" {
            let file_name = part.file_name().unwrap_or("file").to_owned();
            file = Some(part.bytes().await.map_err(broken)?);
            all.insert(name, file_name.into());
            continue;
        }
        let bytes = part.bytes().await.map_err(broken)?;
        if bytes.len() > MAX_TEXT {
            return Err(ApiError::field(
                name,
                format!("has {} bytes; at most {MAX_TEXT} are allowed", bytes.len()),
            ));
        }
        let text =
            String::from_utf8(bytes.to_vec()).map_err(|_| ApiError::field(name.as_str(), "is not UTF-8"))?;
        let Some(list) = name.strip_suffix("[]") else {
            let value = value(&name, text);
            all.insert(name, value);
            continue;
        };
        match all.entry(list.to_owned()).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(items) => items.push(value(list, text)),
            other => *other = Value::Array(vec![value(list, text)]),
        }
    }
    Ok((Fields::of(all), file))
}
