//! Reads a form whose file is written to the folder of files as it arrives.

use axum::body::HttpBody;
use axum::extract::Request;
use bytes::Bytes;

use super::body::reader_with_unused;
use super::form::{FileReceiver, Form};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::files::{Draft, blocking};
use crate::state::AppState;

/// The number of bytes that are written at once.
const CHUNK_LEN: usize = 1 << 20;

/// Reads a form with the part `file`, which is written to a draft. `read` sees the name of the file in its place. Also returns the names of
/// unused fields.
pub(super) async fn store<T: Send + 'static>(
    state: &AppState,
    request: Request,
    read: fn(&mut Fields) -> Result<T, ApiError>,
    draft: Draft,
) -> Result<(T, Draft, Vec<String>), ApiError> {
    let limit = state.config.files.files_size;
    if request.body().size_hint().lower() > limit.0 {
        return Err(ApiError::body_too_large(limit, "--files-size"));
    }
    let mut form = Form::new(request, state.config.limits.body_timeout.duration()).await?;
    let mut writer = Writer { draft: Some(draft), buffer: Vec::new() };
    let read = match form.fields(|_, text| text.into(), &mut writer).await {
        Ok(fields) => reader_with_unused(read, state.config.network.strict)(fields),
        Err(error) => Err(error),
    };
    match (read, writer.draft) {
        (Ok((request, unused)), Some(draft)) => Ok((request, draft, unused)),
        (Ok(_), None) => Err(ApiError::failed("the file was not stored")),
        (Err(error), _) => {
            form.drain().await;
            Err(error)
        }
    }
}

/// Writes the file of a form.
struct Writer {
    /// Absent only while it is written, and after an error.
    draft: Option<Draft>,
    /// Bytes that are not written yet.
    buffer: Vec<u8>,
}

impl FileReceiver for Writer {
    async fn take(&mut self, chunk: Option<Bytes>) -> Result<(), ApiError> {
        self.buffer.extend_from_slice(chunk.as_deref().unwrap_or_default());
        if self.buffer.len() < CHUNK_LEN && chunk.is_some() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        if let Some(mut draft) = self.draft.take() {
            self.draft = Some(blocking(move || draft.write(&bytes).map(|()| draft)).await?);
        }
        Ok(())
    }
}
