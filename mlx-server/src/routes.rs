//! The endpoints. Invariant: an endpoint validates its request before it leases a model, so an invalid request never loads a
//! model.

pub(crate) mod audio;
pub(crate) mod batches;
pub(crate) mod body;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod extract;
pub(crate) mod files;
mod form;
pub(crate) mod mcp;
pub(crate) mod messages;
pub(crate) mod models;
mod multipart;
pub(crate) mod ollama;
pub(crate) mod operation;
pub(crate) mod page;
pub(crate) mod pull;
pub(crate) mod rerank;
mod response;
pub(crate) mod responses;
pub(crate) mod text;
mod token_list;
mod upload;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{delete, get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::ApiError;
use crate::openapi;
use crate::request_log;
use crate::state::AppState;

/// Returns the router with all endpoints.
pub(crate) fn router(state: AppState) -> Router {
    Router::new()
        .route("/", get(page::page).fallback(no_path))
        .route("/pdf-reader", get(page::pdf_reader).fallback(no_path))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/chat/render", post(chat::render))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .route("/v1/rerank", post(rerank::rerank))
        // The paths of Cohere's second API, of text-embeddings-inference and of llama-server.
        .route("/v2/rerank", post(rerank::rerank))
        .route("/rerank", post(rerank::rerank))
        .route("/reranking", post(rerank::rerank))
        .route("/v1/reranking", post(rerank::rerank))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::fetch).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::items))
        .route("/v1/files", get(files::list).post(files::store))
        .route("/v1/files/{id}", get(files::describe).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", get(batches::list).post(create_batch))
        .route("/v1/batches/{id}", get(batches::describe))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/mcp/tools", get(mcp::tools))
        .route("/v1/mcp/call", post(mcp::call))
        .route("/v1/models", get(models::list))
        .route("/v1/models/load", post(models::load))
        .route("/v1/models/unload", post(models::unload))
        .route("/v1/models/{*name}", get(models::one))
        // llama-server's paths.
        .route("/models", get(models::list))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/api/chat", post(ollama::complete))
        .route("/api/generate", post(ollama::text))
        .route("/api/embed", post(ollama::embeddings))
        .route("/api/embeddings", post(ollama::embedding))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::loaded))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/api/pull", post(pull::pull))
        .route("/api/push", post(ollama::unmanaged))
        .route("/api/create", post(ollama::unmanaged))
        .route("/api/copy", post(ollama::unmanaged))
        .route("/api/delete", delete(ollama::unmanaged))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/health", get(operation::health))
        .route("/ready", get(operation::ready))
        .route("/metrics", get(operation::metrics))
        .route("/v1/usage", get(operation::usage))
        .route("/openapi.json", get(openapi::openapi))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .with_state(state)
}

/// Returns the endpoints for requests that the server sends itself, with the same log, metrics and errors.
pub(crate) fn inner_router(state: &AppState) -> Router {
    router(state.clone())
        .layer(CatchPanicLayer::custom(request_log::panic_response))
        .layer(from_fn_with_state(state.clone(), request_log::observe))
}

/// Starts a batch, whose lines these endpoints answer.
async fn create_batch(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let app = inner_router(&state);
    batches::create(state, request, app).await
}

async fn no_path(request: Request) -> ApiError {
    let message = format!("no endpoint at {}; /openapi.json lists the endpoints", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not support {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
