//! `/v1/responses`: computes, fetches, follows, cancels and deletes responses.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use mlx_json::Value;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::read;
use super::extract::{Id, QueryFields, Sender};
use super::response::{AnswerHeaders, answer_deltas, json, with_headers};
use crate::caller::Caller;
use crate::error::{ApiError, ErrorResponse};
use crate::fields::Fields;
use crate::protocol::openai::answer::StreamEvent;
use crate::protocol::openai::page::{Order, page};
use crate::protocol::responses::object;
use crate::protocol::responses::request::ResponseRequest;
use crate::protocol::responses::writer::Writer;
use crate::request_log::RequestNotes;
use crate::responses::run::{ResponseRun, RunningResponse, Started};
use crate::state::AppState;

/// The maximum and the default number of items of a page.
const MAX_PAGE_SIZE: usize = 100;
const DEFAULT_PAGE_SIZE: usize = 20;

/// Computes a response, as one object or as server-sent events.
#[utoipa::path(
    post, path = "/v1/responses", tag = "generation",
    request_body = ResponseRequest,
    responses(
        (status = 200, content((object::Response = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn create(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let caller = Caller::from_request(&request);
    let reader = if state.responses.has_journal() { read_request_and_body } else { read_request };
    let ((request, body), guard) = read(&state, request, reader).await?;
    notes.set_user(request.spec.user.as_deref());
    let run = ResponseRun::new(&state, request, body, guard.origin.client)?;
    let is_streamed = run.is_streamed();
    if run.is_stored() {
        let RunningResponse { meta, stored, reader } = run.run_stored(&state, guard, Some(&caller)).await?;
        let answer_headers = AnswerHeaders::new(&meta);
        if is_streamed {
            return Ok(with_headers(
                reader.body().into_response(),
                answer_headers,
                "text/event-stream",
                true,
            ));
        }
        reader.end().await?;
        return Ok(with_headers(json(&*stored.response()), answer_headers, "application/json", false));
    }
    let (Started { deltas, meta }, echoed) = run.run_ephemeral(&state, guard, &caller).await?;
    answer_deltas(&state, deltas, is_streamed, meta, |meta| Writer::new(echoed, meta)).await
}

fn read_request(fields: &mut Fields) -> Result<(ResponseRequest, Option<Value>), ApiError> {
    ResponseRequest::read(fields).map(|request| (request, None))
}

fn read_request_and_body(fields: &mut Fields) -> Result<(ResponseRequest, Option<Value>), ApiError> {
    let body = fields.to_value();
    ResponseRequest::read(fields).map(|request| (request, Some(body)))
}

/// Options for fetching a response.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FetchQuery {
    /// Stream the events, including future ones.
    #[serde(default)]
    stream: bool,
    /// Send only events with larger numbers. The header `Last-Event-ID` has the same effect.
    starting_after: Option<usize>,
    /// Not used.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    include_obfuscation: Option<bool>,
}

/// Fetches a stored response, or follows its events.
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "generation",
    params(("id" = String, Path, description = "The id of the response."), FetchQuery),
    responses(
        (status = 200, content((object::Response = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = "4XX", body = ErrorResponse),
    )
)]
pub(crate) async fn fetch(
    State(state): State<AppState>,
    Id(id): Id,
    QueryFields(query): QueryFields<FetchQuery>,
    Sender(client): Sender,
    request: Request,
) -> Result<Response, ApiError> {
    let stored = state.responses.get(&id, client)?;
    if !query.stream {
        return Ok(json(&*stored.response()));
    }
    if query.include_obfuscation == Some(true) {
        RequestNotes::from_request(&request).add_ignored(&["include_obfuscation".to_owned()]);
    }
    let after = match query.starting_after {
        Some(after) => Some(after),
        None => last_event(request.headers())?,
    };
    let events = stored.events().ok_or_else(|| {
        ApiError::field("stream", "is true, but this response has no events; fetch it without stream")
    })?;
    let reader = events.reader(after.map_or(0, |after| after.saturating_add(1)));
    let mut response = reader.body().into_response();
    super::response::event_stream(response.headers_mut(), "text/event-stream");
    Ok(response)
}

fn last_event(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let number = id.to_str().ok().and_then(|id| id.parse().ok());
    number.map(Some).ok_or_else(|| ApiError::field("Last-Event-ID", "must be the number of an event"))
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deletion {
    /// The id of the deleted response.
    id: String,
    /// Always `response`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// Deletes a stored response. A running response is cancelled.
#[utoipa::path(
    delete, path = "/v1/responses/{id}", tag = "generation",
    params(("id" = String, Path, description = "The id of the response.")),
    responses((status = 200, body = Deletion), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn delete(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    state.responses.delete(&id, client).await?;
    Ok(json(Deletion { id, object: "response", deleted: true }))
}

/// Cancels a running response. A finished response is not changed.
#[utoipa::path(
    post, path = "/v1/responses/{id}/cancel", tag = "generation",
    params(("id" = String, Path, description = "The id of the response.")),
    responses((status = 200, body = object::Response), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    Id(id): Id,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let stored = state.responses.get(&id, client)?;
    stored.cancelled.cancel();
    if let Some(events) = stored.events() {
        // The response contains the error.
        events.reader(0).end().await.ok();
    }
    Ok(json(&*stored.response()))
}

/// Options for listing items.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemsQuery {
    /// Maximum number of items, from 1 to 100; the default is 20.
    limit: Option<usize>,
    /// `desc` (the default) lists the newest item first; `asc` the oldest.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    order: Order,
    /// List only items after the one with this id.
    after: Option<String>,
}

/// A page of items.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemList {
    /// Always `list`.
    object: &'static str,
    /// The items.
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
    /// The id of the first item.
    first_id: Option<String>,
    /// The id of the last item.
    last_id: Option<String>,
    /// True if there are more items.
    has_more: bool,
}

/// Lists the items of the conversation before the answer.
#[utoipa::path(
    get, path = "/v1/responses/{id}/input_items", tag = "generation",
    params(("id" = String, Path, description = "The id of the response."), ItemsQuery),
    responses((status = 200, body = ItemList), (status = "4XX", body = ErrorResponse))
)]
pub(crate) async fn items(
    State(state): State<AppState>,
    Id(id): Id,
    QueryFields(query): QueryFields<ItemsQuery>,
    Sender(client): Sender,
) -> Result<Response, ApiError> {
    let stored = state.responses.get(&id, client)?;
    let limit = (query.limit.unwrap_or(DEFAULT_PAGE_SIZE), MAX_PAGE_SIZE);
    let page = page(stored.items.clone(), item_id, query.order, limit, query.after.as_deref())?;
    let id_of = |item: Option<&Arc<Value>>| item.map(|item| item_id(item).to_owned());
    let (first_id, last_id) = (id_of(page.items.first()), id_of(page.items.last()));
    let data = page.items.into_iter().map(Arc::unwrap_or_clone).collect();
    Ok(json(ItemList { object: "list", data, first_id, last_id, has_more: page.has_more }))
}

fn item_id(item: &Arc<Value>) -> &str {
    item["id"].as_str().unwrap_or_default()
}
