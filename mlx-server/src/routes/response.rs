//! Builds responses: JSON, or a stream of events.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use mlx_core::engine::Miss;

use crate::answer::{AnswerMeta, AnswerWriter, Prepared};
use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::Choice;
use crate::json::Json;
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::stream::{AnswerEvents, Deltas};
use crate::{request_log, stream};

/// Returns the response to a request with running generations.
pub(super) async fn answer<W: AnswerWriter>(
    state: &AppState,
    prepared: Prepared,
    writer: impl FnOnce(AnswerMeta) -> W,
) -> Result<Response, ApiError> {
    let Prepared { choices, is_streamed, meta } = prepared;
    let answer_headers = AnswerHeaders::new(&meta);
    let writer = writer(meta);
    let keep_alive = state.config.limits.keep_alive.duration();
    if is_streamed {
        let body = stream::body(choices, writer, keep_alive);
        return Ok(with_headers(body.into_response(), answer_headers, W::STREAM_TYPE, true));
    }
    // All choices are awaited together: the first failure cancels the others.
    let deltas = try_join_all(choices.into_iter().map(Choice::collect)).await?;
    Ok(whole(writer, deltas, answer_headers))
}

/// Returns the response to a request with one answer, from its deltas.
pub(super) async fn answer_deltas<W: AnswerWriter>(
    state: &AppState,
    deltas: Deltas,
    is_streamed: bool,
    meta: AnswerMeta,
    writer: impl FnOnce(AnswerMeta) -> W,
) -> Result<Response, ApiError> {
    let answer_headers = AnswerHeaders::new(&meta);
    let writer = writer(meta);
    if is_streamed {
        let keep_alive = state.config.limits.keep_alive.duration();
        let body = stream::events_body(AnswerEvents::of(deltas, writer, keep_alive));
        return Ok(with_headers(body.into_response(), answer_headers, W::STREAM_TYPE, true));
    }
    let deltas: Vec<Delta> = deltas.try_collect().await?;
    Ok(whole(writer, vec![deltas], answer_headers))
}

/// Returns the response with a whole answer.
fn whole(writer: impl AnswerWriter, deltas: Vec<Vec<Delta>>, answer_headers: AnswerHeaders) -> Response {
    let miss = deltas.iter().flatten().find_map(|delta| delta.end.as_ref()?.usage.miss);
    let body = Body::from(writer.into_json(deltas));
    let mut response = with_headers(body.into_response(), answer_headers, "application/json", false);
    if let Some(Miss { at, cached: kept }) = miss
        && let Ok(value) = HeaderValue::try_from(format!("{at}/{kept}"))
    {
        response.headers_mut().insert(request_log::PREFIX_MISS, value);
    }
    response
}

/// The metadata of an answer for its headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerHeaders {
    seed: u64,
    exactness: &'static str,
    dropped: Option<usize>,
}

impl AnswerHeaders {
    /// Returns the header metadata of an answer.
    pub(super) fn new(meta: &AnswerMeta) -> Self {
        let AnswerMeta { seed, exactness, dropped, .. } = *meta;
        Self { seed, exactness, dropped }
    }
}

/// Adds the headers of an answer.
pub(super) fn with_headers(
    response: Response,
    answer_headers: AnswerHeaders,
    kind: &'static str,
    is_streamed: bool,
) -> Response {
    let mut response = exactness(response, answer_headers.exactness);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(request_log::SEED, HeaderValue::from(answer_headers.seed));
    if let Some(dropped) = answer_headers.dropped {
        headers.insert(request_log::DROPPED, HeaderValue::from(dropped));
    }
    if is_streamed {
        event_stream(headers, kind);
    }
    response
}

/// Sets the headers of a stream.
pub(super) fn event_stream(headers: &mut HeaderMap, kind: &'static str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx must not buffer the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Adds the exactness level to a response.
fn exactness(mut response: Response, name: &'static str) -> Response {
    response.headers_mut().insert(request_log::EXACTNESS, HeaderValue::from_static(name));
    response
}

/// Returns the JSON response with vectors or scores: with their exactness level, and the number of texts that were cut.
pub(super) fn computed<T: serde::Serialize>(value: T, level: &'static str, truncated: usize) -> Response {
    let mut response = exactness(json(value), level);
    if truncated > 0 {
        response.headers_mut().insert(request_log::TRUNCATED, HeaderValue::from(truncated));
    }
    response
}

/// Returns a JSON response.
pub(super) fn json<T: serde::Serialize>(value: T) -> Response {
    Json(value).into_response()
}

/// Serializes a value as JSON.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    // Serializing cannot fail for the types in use.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns a JSON response whose body is produced in chunks while the client reads it. `guard` holds its memory until the end.
pub(super) fn chunked_json(
    parts: impl Iterator<Item = Vec<u8>> + Send + 'static,
    guard: RequestGuard,
) -> Response {
    let parts = parts.map(move |part| {
        let _held = &guard;
        Ok::<_, Infallible>(part)
    });
    json_body(Body::from_stream(futures_util::stream::iter(parts)))
}

/// Returns a JSON response with a serialized body.
pub(super) fn json_body(json: impl Into<Body>) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json.into()).into_response()
}
