//! `/v1/files`.

use std::io::Read;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use tokio::task::spawn_blocking;

use super::extract::{Id, QueryFields, Sender};
use super::response::json;
use super::upload;
use crate::client;
use crate::error::{ApiError, ErrorResponse};
use crate::files::{Draft, INPUT, blocking};
use crate::protocol::openai::file::{FileDeletion, FileList, FileObject, FileUpload, FilesQuery};
use crate::protocol::openai::page::page;
use crate::request_log::RequestNotes;
use crate::state::AppState;

/// The maximum and the default number of files of a page.
const MAX_PAGE_SIZE: usize = 10_000;
/// The number of bytes that are read from a file at once.
const CHUNK_LEN: usize = 256 << 10;

/// Stores a file with the requests of a batch.
#[utoipa::path(
    post, path = "/v1/files", tag = "batches",
    request_body(content = FileUpload, content_type = "multipart/form-data"),
    responses((status = 200, body = FileObject), (status = "4XX", body = ErrorResponse), (status = "5XX", body = ErrorResponse))
)]
pub(crate) async fn store(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let files = Arc::clone(&state.batches()?.files);
    let notes = RequestNotes::from_request(&request);
    let client = client::from_request(&request);
    let (FileUpload(name), draft, unused) =
        upload::store(&state, request, FileUpload::read, Draft::new(&files)?).await?;
    notes.add_ignored(&unused);
    let record = blocking(move || draft.finish(&name, INPUT, client)).await?;
    Ok(json(FileObject::new(&record)))
}

/// Lists the files of the client.
#[utoipa::path(
    get, path = "/v1/files", tag = "batches", params(FilesQuery),
    responses((status = 200, body = FileList), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    QueryFields(query): QueryFields<FilesQuery>,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let mut files = state.batches()?.files.list(client);
    files.retain(|file| query.purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose));
    let files: Vec<_> = files.iter().map(|file| FileObject::new(file)).collect();
    let limit = (query.limit.unwrap_or(MAX_PAGE_SIZE), MAX_PAGE_SIZE);
    let page = page(files, FileObject::id, query.order, limit, query.after.as_deref())?;
    let id = |file: Option<&FileObject>| file.map(|file| file.id().to_owned());
    let (first_id, last_id) = (id(page.items.first()), id(page.items.last()));
    Ok(json(FileList { object: "list", data: page.items, first_id, last_id, has_more: page.has_more }))
}

/// Describes a file.
#[utoipa::path(
    get, path = "/v1/files/{id}", tag = "batches",
    params(("id" = String, Path, description = "The id of the file.")),
    responses((status = 200, body = FileObject), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn describe(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let file = state.batches()?.files.get(&id, client)?;
    Ok(json(FileObject::new(&file)))
}

/// Returns the bytes of a file.
#[utoipa::path(
    get, path = "/v1/files/{id}/content", tag = "batches",
    params(("id" = String, Path, description = "The id of the file.")),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream"),
        (status = "4XX", body = ErrorResponse),
    )
)]
pub(crate) async fn content(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let files = &state.batches()?.files;
    let record = files.get(&id, client)?;
    let file = files.read(&record.id)?;
    let chunks = try_unfold(file, |mut file| async move {
        let read = move || {
            let mut chunk = Vec::with_capacity(CHUNK_LEN);
            let count = (&mut file).take(CHUNK_LEN as u64).read_to_end(&mut chunk)?;
            Ok::<_, std::io::Error>((count > 0).then_some((Bytes::from(chunk), file)))
        };
        spawn_blocking(read).await.map_err(std::io::Error::other)?
    });
    let mut response = Body::from_stream(chunks).into_response();
    let headers = response.headers_mut();
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(record.bytes));
    Ok(response)
}

/// Deletes a file.
#[utoipa::path(
    delete, path = "/v1/files/{id}", tag = "batches",
    params(("id" = String, Path, description = "The id of the file.")),
    responses((status = 200, body = FileDeletion), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn delete(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let batches = Arc::clone(state.batches()?);
    let file = batches.files.get(&id, client)?;
    if let Some(batch) = batches.reader_of(&file.id) {
        let message = format!("the batch {batch} reads this file; cancel it first, or wait until it ends");
        return Err(ApiError::new(StatusCode::CONFLICT, "file_in_use", message));
    }
    let id = file.id.clone();
    blocking(move || batches.files.delete(&file)).await?;
    Ok(json(FileDeletion { id, object: "file", deleted: true }))
}
