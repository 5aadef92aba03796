//! Reads a form whose file is written to the folder of files as it arrives.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use mlx_json::Map;

use super::body::{DRAIN_TIMEOUT, reader_with_unused, too_slow};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::files::{Draft, blocking};
use crate::state::AppState;

/// The maximum number of parts of a form.
const MAX_PARTS: usize = 64;
/// The maximum bytes of a part that is not the file.
const MAX_TEXT: usize = 64 << 10;
/// The number of bytes that are written at once.
const CHUNK_LEN: usize = 1 << 20;

/// The parts of a form.
struct Form {
    parts: Multipart,
    /// The maximum time between two chunks.
    timeout: Duration,
    /// The draft of the part `file`. Absent only while it is written, and after an error.
    draft: Option<Draft>,
}

/// Reads a form with the part `file`, which is written to a draft. `read` sees the name of the file in its place. Also returns the names of
/// unused fields.
pub(super) async fn store<T: Send + 'static>(
    state: &AppState,
    mut request: Request,
    read: fn(&mut Fields) -> Result<T, ApiError>,
    draft: Draft,
) -> Result<(T, Draft, Vec<String>), ApiError> {
    let limit = state.config.files.files_size;
    if request.body().size_hint().lower() > limit.0 {
        return Err(ApiError::body_too_large(limit, "--files-size"));
    }
    // Our own limits hold, not axum's.
    DefaultBodyLimit::disable().apply(&mut request);
    let parts = Multipart::from_request(request, &()).await;
    let parts = parts.map_err(|error| ApiError::body(format!("the body is not a form: {error}")))?;
    let timeout = state.config.limits.body_timeout.duration();
    let mut form = Form { parts, timeout, draft: Some(draft) };
    let read = match form.fields().await {
        Ok(fields) => reader_with_unused(read, state.config.network.strict)(fields),
        Err(error) => Err(error),
    };
    match (read, form.draft) {
        (Ok((request, unused)), Some(draft)) => Ok((request, draft, unused)),
        (Ok(_), None) => Err(ApiError::failed("the file was not stored")),
        (Err(error), _) => {
            // Drain the body: a client that is still sending would not read the response.
            let rest = async { while let Ok(Some(_)) = form.parts.next_field().await {} };
            tokio::time::timeout(DRAIN_TIMEOUT, rest).await.ok();
            Err(error)
        }
    }
}

impl Form {
    /// Returns the texts of the form, and writes its file.
    async fn fields(&mut self) -> Result<Fields, ApiError> {
        let Self { parts, timeout, draft } = self;
        let (mut all, mut count) = (Map::new(), 0);
        while let Some(mut part) = in_time(parts.next_field(), *timeout).await? {
            count += 1;
            if count > MAX_PARTS {
                return Err(ApiError::body(format!("the form has more than {MAX_PARTS} parts")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            if all.contains_key(&name) {
                return Err(ApiError::field(name, "occurs twice in the form"));
            }
            if name == "file" {
                all.insert(name, part.file_name().unwrap_or("file").into());
                receive(part, draft, *timeout).await?;
                continue;
            }
            let mut bytes = Vec::new();
            while let Some(chunk) = in_time(part.chunk(), *timeout).await? {
                bytes.extend_from_slice(&chunk);
                if bytes.len() > MAX_TEXT {
                    let message = format!("is longer than the {MAX_TEXT} bytes that are allowed");
                    return Err(ApiError::field(name, message));
                }
            }
            let text =
                String::from_utf8(bytes).map_err(|_| ApiError::field(name.as_str(), "is not UTF-8"))?;
            all.insert(name, text.into());
        }
        Ok(Fields::of(all))
    }
}

/// Writes the file of a form.
async fn receive(mut part: Field<'_>, draft: &mut Option<Draft>, timeout: Duration) -> Result<(), ApiError> {
    let mut buffer = Vec::new();
    loop {
        let chunk = in_time(part.chunk(), timeout).await?;
        buffer.extend_from_slice(chunk.as_deref().unwrap_or_default());
        if buffer.len() < CHUNK_LEN && chunk.is_some() {
            continue;
        }
        let bytes = std::mem::take(&mut buffer);
        if let Some(mut writer) = draft.take() {
            *draft = Some(blocking(move || writer.write(&bytes).map(|()| writer)).await?);
        }
        if chunk.is_none() {
            return Ok(());
        }
    }
}

/// Waits for a part of a form, or a chunk of it.
async fn in_time<T>(
    next: impl Future<Output = Result<T, MultipartError>>,
    timeout: Duration,
) -> Result<T, ApiError> {
    let next = tokio::time::timeout(timeout, next).await.map_err(|_| too_slow())?;
    next.map_err(|error| ApiError::body(format!("the form is not complete: {}", error.body_text())))
}
