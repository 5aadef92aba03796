//! Ollama's endpoints under `/api`.

use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::body::read;
use super::response::{answer, computed, json};
use crate::chat_request::ChatRequest;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::{KeepAlive, Purpose};
use crate::protocol::ollama::embed::{
    OllamaEmbedRequest, OllamaEmbedding, OllamaEmbeddingRequest, OllamaEmbeddings,
};
use crate::protocol::ollama::error::OllamaError;
use crate::protocol::ollama::model::{Description, OllamaModel, OllamaModels, ShowRequest};
use crate::protocol::ollama::request::{OllamaChatRequest, OllamaGenerateRequest};
use crate::protocol::ollama::writer::{Endpoint, Writer, loaded_line};
use crate::protocol::openai::embedding::{EmbeddingList, EmbeddingRequest, Vector};
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::{embed, prepare};

/// The implemented version of Ollama's API. Clients check it before they use newer features.
const VERSION: &str = "0.13.5";

/// Continues a chat.
#[utoipa::path(
    post, path = "/api/chat", tag = "ollama",
    request_body = OllamaChatRequest,
    responses((status = 200, body = Object), (status = "4XX", body = OllamaError), (status = "5XX", body = OllamaError))
)]
pub(crate) async fn complete(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    generate(&state, request, |fields| OllamaChatRequest::read(fields).map(|it| (it.0, it.1)), Endpoint::Chat)
        .await
}

/// Answers a prompt.
#[utoipa::path(
    post, path = "/api/generate", tag = "ollama",
    request_body = OllamaGenerateRequest,
    responses((status = 200, body = Object), (status = "4XX", body = OllamaError), (status = "5XX", body = OllamaError))
)]
pub(crate) async fn text(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    generate(
        &state,
        request,
        |fields| OllamaGenerateRequest::read(fields).map(|it| (it.0, it.1)),
        Endpoint::Generate,
    )
    .await
}

/// Reads a chat, and the time without a request after which its model is unloaded.
type ChatReader = fn(&mut Fields) -> Result<(ChatRequest, Option<KeepAlive>), ApiError>;

async fn generate(
    state: &AppState,
    request: Request,
    reader: ChatReader,
    endpoint: Endpoint,
) -> Result<Response, ApiError> {
    let ((chat, keep_alive), guard) = read(state, request, reader).await?;
    let model = chat.spec.model.clone();
    let keep = || {
        if let Some(time) = keep_alive {
            state.models.keep(model.as_deref(), time);
        }
    };
    if chat.conversation.messages.is_empty() {
        if keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
            let name = state.models.first_name(model.as_deref());
            let model = state.models.unload_by_name(&name).await?;
            return Ok(json(loaded_line(endpoint, &model.id, "unload")));
        }
        let lease = state.models.lease(model.as_deref()).await?;
        keep();
        return Ok(json(loaded_line(endpoint, lease.model_name(), "load")));
    }
    let prepared = prepare::start_chat(state, chat, guard).await?;
    // The answer holds the model until its end.
    keep();
    answer(state, prepared, |meta| Writer::new(endpoint, meta)).await
}

/// Computes embeddings of texts.
#[utoipa::path(
    post, path = "/api/embed", tag = "ollama",
    request_body = OllamaEmbedRequest,
    responses((status = 200, body = OllamaEmbeddings), (status = "4XX", body = OllamaError), (status = "5XX", body = OllamaError))
)]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    let (OllamaEmbedRequest(request, keep_alive), guard) =
        read(&state, request, OllamaEmbedRequest::read).await?;
    let Vectors { list, exactness, loaded } = vectors(&state, request, keep_alive, guard).await?;
    let answer = OllamaEmbeddings {
        model: list.model,
        embeddings: list.data.into_iter().map(|object| object.embedding).collect(),
        total_duration: nanoseconds(start.elapsed()),
        load_duration: nanoseconds(loaded - start),
        prompt_eval_count: list.usage.prompt_tokens,
    };
    Ok(computed(answer, exactness, list.usage.truncated_inputs))
}

/// Computes the embedding of one text.
#[utoipa::path(
    post, path = "/api/embeddings", tag = "ollama",
    request_body = OllamaEmbeddingRequest,
    responses((status = 200, body = OllamaEmbedding), (status = "4XX", body = OllamaError), (status = "5XX", body = OllamaError))
)]
pub(crate) async fn embedding(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (OllamaEmbeddingRequest(request, keep_alive), guard) =
        read(&state, request, OllamaEmbeddingRequest::read).await?;
    let vectors = vectors(&state, request, keep_alive, guard).await;
    let Vectors { list, exactness, .. } = vectors.map_err(|error| error.rename_field("input", "prompt"))?;
    let first = list.data.into_iter().next();
    let embedding = first.map_or(Vector::Float(Vec::new()), |object| object.embedding);
    Ok(computed(OllamaEmbedding { embedding }, exactness, list.usage.truncated_inputs))
}

/// The embeddings of a request.
struct Vectors {
    list: EmbeddingList,
    exactness: &'static str,
    /// The time at which the model was loaded.
    loaded: Instant,
}

/// Computes the embeddings of a request. A request without texts only loads the model.
async fn vectors(
    state: &AppState,
    request: EmbeddingRequest,
    keep_alive: Option<KeepAlive>,
    guard: RequestGuard,
) -> Result<Vectors, ApiError> {
    embed::check_amount(state, &request)?;
    let lease = state.models.lease_for(Purpose::Embed, request.model.as_deref()).await?;
    if let Some(time) = keep_alive {
        state.models.keep(request.model.as_deref(), time);
    }
    let loaded = Instant::now();
    let (encoding, shared, origin) = (request.encoding, state.clone(), guard.origin.clone());
    let running = guard.run(move |cancel| embed::start(&shared, &lease, &request, &origin, cancel)).await?;
    drop(guard);
    let exactness = running.exactness;
    Ok(Vectors { list: running.list(encoding).await?, exactness, loaded })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Lists the models.
#[utoipa::path(get, path = "/api/tags", tag = "ollama", responses((status = 200, body = OllamaModels)))]
pub(crate) async fn tags(State(state): State<AppState>) -> Response {
    let models = state.models.served().await;
    json(OllamaModels { models: models.iter().map(OllamaModel::from_served).collect() })
}

/// Lists the models in memory.
#[utoipa::path(get, path = "/api/ps", tag = "ollama", responses((status = 200, body = OllamaModels)))]
pub(crate) async fn loaded(State(state): State<AppState>) -> Response {
    let loaded = state.models.all().into_iter().filter(|entry| entry.is_loaded());
    json(OllamaModels {
        models: loaded.map(|entry| OllamaModel::loaded(&entry, state.models.idle())).collect(),
    })
}

/// Describes a model.
#[utoipa::path(
    post, path = "/api/show", tag = "ollama",
    request_body = ShowRequest,
    responses((status = 200, body = Description), (status = "4XX", body = OllamaError))
)]
pub(crate) async fn show(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (ShowRequest(name), _job) = read(&state, request, ShowRequest::read).await?;
    let entry = state.models.entry(&name).await?;
    let description = spawn_blocking(move || Description::from_entry(&entry)).await;
    description.map(json).map_err(|_| ApiError::failed("describing the model was interrupted"))
}

/// The API version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Version {
    /// The version of Ollama.
    version: &'static str,
}

/// Reports the version of Ollama's API that the server implements.
#[utoipa::path(get, path = "/api/version", tag = "ollama", responses((status = 200, body = Version)))]
pub(crate) async fn version() -> Response {
    json(Version { version: VERSION })
}

/// Rejects requests to change stored models, since that is done with the command line.
pub(crate) async fn unmanaged() -> ApiError {
    let message = "stored models are not changed over HTTP; use mlx convert and mlx remove, or POST /api/pull to download a model";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}
