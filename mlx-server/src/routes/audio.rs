//! `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use mlx_audio::Limits;
use mlx_core::transcription::{TranscriptFormat, Translate};

use super::multipart::read;
use super::response::event_stream;
use crate::body_memory::Charge;
use crate::error::{ApiError, ErrorResponse};
use crate::models::Purpose;
use crate::protocol::openai::audio::{AudioRequest, TranscriptionObject, form_value};
use crate::request_log::{self, RequestNotes};
use crate::state::AppState;
use crate::transcribe::{self, Running};
use crate::work::CancelFlag;

/// Turns speech into text.
#[utoipa::path(
    post, path = "/v1/audio/transcriptions", tag = "generation",
    request_body(content = AudioRequest, content_type = "multipart/form-data"),
    responses(
        (status = 200, body = TranscriptionObject),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn transcribe(
    State(state): State<AppState>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(state, request, Translate::No).await
}

/// Turns speech into English text.
#[utoipa::path(
    post, path = "/v1/audio/translations", tag = "generation",
    request_body(content = AudioRequest, content_type = "multipart/form-data"),
    responses(
        (status = 200, body = TranscriptionObject),
        (status = "4XX", body = ErrorResponse),
        (status = "5XX", body = ErrorResponse),
    )
)]
pub(crate) async fn translate(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    answer(state, request, Translate::ToEnglish).await
}

/// Rejects a file that is not audio before it loads a model.
fn checked(file: Bytes) -> Result<Bytes, ApiError> {
    mlx_audio::check_header(&file, &Limits::default()).map_err(|error| transcribe::unusable(&error))?;
    Ok(file)
}

async fn answer(state: AppState, request: Request, translate: Translate) -> Result<Response, ApiError> {
    let notes = RequestNotes::from_request(&request);
    let (request, file, mut guard) = read(&state, request, form_value, AudioRequest::read).await?;
    notes.set_user(request.user.as_deref());
    let file = guard.run(move |_| checked(file)).await?;
    let lease = state.models.lease_for(Purpose::Transcribe, request.model.as_deref()).await?;
    let (format, is_streamed) = (request.format, request.stream);
    let start = {
        let (state, origin) = (state.clone(), guard.origin.clone());
        move |cancel: &CancelFlag, charge: &mut Charge| {
            transcribe::start(&state, lease, &request, translate, file, origin, (cancel, charge))
        }
    };
    let started: Running = guard.run_charged(start).await?;
    if is_streamed {
        let keep_alive = state.config.limits.keep_alive.duration();
        let mut response = Body::from_stream(transcribe::events(started, guard, keep_alive)).into_response();
        event_stream(response.headers_mut(), "text/event-stream");
        return Ok(response);
    }
    let level = started.exactness();
    let transcript = started.finish(&mut guard).await?;
    let kind = match format {
        TranscriptFormat::Json | TranscriptFormat::VerboseJson => "application/json",
        TranscriptFormat::Text | TranscriptFormat::Srt => "text/plain; charset=utf-8",
        TranscriptFormat::Vtt => "text/vtt; charset=utf-8",
    };
    let mut response = transcript.format(format).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(request_log::EXACTNESS, HeaderValue::from_static(level));
    Ok(response)
}
