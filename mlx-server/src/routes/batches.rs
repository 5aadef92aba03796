//! `/v1/batches`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;

use super::body::read;
use super::extract::{Id, QueryFields, Sender};
use super::response::json;
use crate::batches::{BatchRecord, run};
use crate::error::{ApiError, ErrorResponse};
use crate::files::{INPUT, blocking};
use crate::protocol::openai::batch::{BatchList, BatchObject, BatchRequest, BatchesQuery};
use crate::protocol::openai::page::{Order, page};
use crate::state::AppState;

/// The maximum and the default number of batches of a page.
const MAX_PAGE_SIZE: usize = 100;
const DEFAULT_PAGE_SIZE: usize = 20;

/// Starts a batch, which answers the lines of a file at low priority.
#[utoipa::path(
    post, path = "/v1/batches", tag = "batches",
    request_body = BatchRequest,
    responses((status = 200, body = BatchObject), (status = "4XX", body = ErrorResponse), (status = "5XX", body = ErrorResponse))
)]
pub(crate) async fn create(state: AppState, request: Request, app: Router) -> Result<Response, ApiError> {
    let batches = Arc::clone(state.batches()?);
    let (BatchRequest { input, endpoint, metadata }, guard) =
        read(&state, request, BatchRequest::read).await?;
    let client = guard.origin.client;
    let file = batches.files.get(&input, client).map_err(|error| error.with_field("input_file_id"))?;
    if file.purpose != INPUT {
        let message = format!("has the purpose {}; give a file with the purpose {INPUT}", file.purpose);
        return Err(ApiError::field("input_file_id", message));
    }
    let record = BatchRecord::new(client, endpoint, input, metadata);
    let batch = blocking(move || batches.insert(record)).await?;
    let object = BatchObject::new(batch.record());
    run::start(&state, app, batch);
    Ok(json(object))
}

/// Lists the batches of the client, the newest one first.
#[utoipa::path(
    get, path = "/v1/batches", tag = "batches", params(BatchesQuery),
    responses((status = 200, body = BatchList), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    QueryFields(query): QueryFields<BatchesQuery>,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let batches = state.batches()?.list(client);
    let batches: Vec<_> = batches.into_iter().map(BatchObject::new).collect();
    let limit = (query.limit.unwrap_or(DEFAULT_PAGE_SIZE), MAX_PAGE_SIZE);
    let page = page(batches, BatchObject::id, Order::Desc, limit, query.after.as_deref())?;
    let id = |batch: Option<&BatchObject>| batch.map(|batch| batch.id().to_owned());
    let (first_id, last_id) = (id(page.items.first()), id(page.items.last()));
    Ok(json(BatchList { object: "list", data: page.items, first_id, last_id, has_more: page.has_more }))
}

/// Describes a batch.
#[utoipa::path(
    get, path = "/v1/batches/{id}", tag = "batches",
    params(("id" = String, Path, description = "The id of the batch.")),
    responses((status = 200, body = BatchObject), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn describe(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let batch = state.batches()?.get(&id, client)?;
    Ok(json(BatchObject::new(batch.record())))
}

/// Cancels a batch. The results so far stay.
#[utoipa::path(
    post, path = "/v1/batches/{id}/cancel", tag = "batches",
    params(("id" = String, Path, description = "The id of the batch.")),
    responses((status = 200, body = BatchObject), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let batches = Arc::clone(state.batches()?);
    let batch = batches.get(&id, client)?;
    let record = blocking(move || batches.cancel(&batch)).await?;
    Ok(json(BatchObject::new(record)))
}
