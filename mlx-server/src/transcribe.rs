//! Runs transcriptions: part by part, within the engine's queue. Dropping one cancels it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use mlx_core::engine::{Engine, Event, EventStream, RequestOptions};
use mlx_core::transcription::{
    Segment, SpeechAudio, Transcript, Transcription, TranscriptionOptions, Translate,
};
use mlx_core::{Error, SamplingOptions};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::body_memory::Charge;
use crate::error::ApiError;
use crate::generation::Origin;
use crate::models::Lease;
use crate::protocol::openai::audio::AudioRequest;
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::work::CancelFlag;

/// The time after which a part is submitted again if the queue was full.
const RETRY: Duration = Duration::from_millis(500);

/// A running transcription.
pub(crate) struct Running {
    state: AppState,
    origin: Origin,
    started: Instant,
    /// `None` while a thread prepares the request of the next part, and after that failed.
    transcription: Option<Box<Transcription>>,
    /// The events of the current part.
    events: Option<EventStream>,
    segments: Vec<Segment>,
    /// The tokens of all parts so far: prompts and answers.
    spent: (usize, usize),
    has_ended: bool,
    // Must be the last field, so that it is dropped last: the lease keeps the engine, which must not be dropped on an async thread.
    lease: Lease,
}

/// Decodes a file. This takes CPU time, so it belongs on a blocking thread. The audio is charged as it grows.
pub(crate) fn start(
    state: &AppState,
    lease: Lease,
    request: &AudioRequest,
    translate: Translate,
    file: Bytes,
    origin: Origin,
    (cancel, charge): (&CancelFlag, &mut Charge),
) -> Result<Running, ApiError> {
    let mut options = TranscriptionOptions {
        language: request.language.map(str::to_owned),
        translate,
        prompt: request.prompt.clone(),
        timed: request.timed,
        ..TranscriptionOptions::default()
    };
    if let Some(temperature) = request.temperature.filter(|temperature| *temperature > 0.0) {
        options.temperatures = vec![temperature];
    }
    options.check(&lease.engine)?;
    let audio = decoded(&lease.engine, file, cancel, charge)?;
    charge.set(audio.bytes() as u64)?;
    let base = RequestOptions {
        priority: request.priority,
        sampling: SamplingOptions { seed: request.seed, ..SamplingOptions::default() },
        ..origin.options()
    };
    let transcription = Some(Box::new(Transcription::new(&lease.engine, audio, options, &base)?));
    Ok(Running {
        state: state.clone(),
        origin,
        started: Instant::now(),
        transcription,
        events: None,
        segments: Vec::new(),
        spent: (0, 0),
        has_ended: false,
        lease,
    })
}

/// Decodes a file, and charges its audio besides the file.
fn decoded(
    engine: &Engine,
    file: Bytes,
    cancel: &CancelFlag,
    charge: &mut Charge,
) -> Result<SpeechAudio, ApiError> {
    let (bytes, mut charged, mut full) = (file.len(), 0, None);
    let mut check = |audio: usize| {
        cancel.check().map_err(|_| mlx_audio::Error::Cancelled)?;
        if audio > charged {
            charged = audio;
            charge.set((bytes + audio) as u64).map_err(|error| {
                full = Some(error);
                mlx_audio::Error::Cancelled
            })?;
        }
        Ok(())
    };
    let audio = SpeechAudio::of_file(engine, file, &mut check);
    match (audio, full) {
        (_, Some(full)) => Err(full),
        (Err(mlx_audio::Error::Cancelled), None) => Err(Error::Cancelled.into()),
        (audio, None) => audio.map_err(|error| unusable(&error)),
    }
}

/// Returns the error for a file that cannot be decoded.
pub(crate) fn unusable(error: &mlx_audio::Error) -> ApiError {
    ApiError::field("file", format!("cannot be used: {error}"))
}

impl Running {
    /// Returns the exactness level of the text.
    pub(crate) fn exactness(&self) -> &'static str {
        self.lease.engine.exactness().as_str()
    }

    /// Waits for the whole transcript.
    pub(crate) async fn finish(mut self, guard: &mut RequestGuard) -> Result<Transcript, ApiError> {
        while self.next(guard).await?.is_some() {}
        self.transcript()
    }

    /// Waits for the next text. Releases the audio of complete parts. `None` at the end.
    async fn next(&mut self, guard: &mut RequestGuard) -> Result<Option<String>, ApiError> {
        loop {
            let events = match &mut self.events {
                Some(events) => events,
                None => match self.begin().await? {
                    Some(events) => self.events.insert(events),
                    None => return Ok(None),
                },
            };
            let event = tokio::select! {
                event = events.next() => event,
                () = self.state.shutdown.forced.cancelled() => return Err(ApiError::shutting_down()),
            };
            let event = event.ok_or_else(|| ApiError::failed("the engine returned no result"))?;
            let is_last = matches!(event, Event::Done(_));
            let transcription = self.transcription.as_mut().ok_or_else(unprepared)?;
            let progress = transcription.accept(event);
            if is_last {
                self.events = None;
                let usage = transcription.usage();
                let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
                let before = std::mem::replace(&mut self.spent, (prompt, completion));
                let client = self.origin.client;
                self.state.keys.record(client, prompt - before.0, completion - before.1);
                guard.set_bytes(transcription.bytes())?;
            }
            let progress = progress?;
            self.segments.extend(progress.segments);
            if !progress.delta.is_empty() {
                return Ok(Some(progress.delta));
            }
        }
    }

    /// Submits the request of the next part. `None` at the end.
    async fn begin(&mut self) -> Result<Option<EventStream>, ApiError> {
        let mut transcription = self.transcription.take().ok_or_else(unprepared)?;
        // This computes features, and an engine in another process checks the request there, which blocks.
        let prepare = move || (transcription.next_request(), transcription);
        let (request, transcription) = spawn_blocking(prepare).await.map_err(|_| unprepared())?;
        let transcription = self.transcription.insert(transcription);
        let Some(request) = request? else {
            self.end();
            return Ok(None);
        };
        loop {
            match self.lease.engine.submit(request.clone()) {
                // The queue is full. A transcription that has begun waits.
                Err(Error::Busy { .. }) if transcription.position() > 0.0 => tokio::time::sleep(RETRY).await,
                generation => return Ok(Some(generation?.into_stream())),
            }
        }
    }

    /// Records and logs the end.
    fn end(&mut self) {
        self.has_ended = true;
        self.state.metrics.record_generation("stop");
        tracing::info!(
            id = self.origin.id.as_str(),
            model = self.lease.name,
            audio_seconds = self.transcription.as_ref().map(|it| it.duration()),
            prompt_tokens = self.spent.0,
            completion_tokens = self.spent.1,
            seconds = (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "transcript"
        );
    }

    fn transcript(&mut self) -> Result<Transcript, ApiError> {
        let segments = std::mem::take(&mut self.segments);
        Ok(self.transcription.as_ref().ok_or_else(unprepared)?.transcript(segments))
    }
}

fn unprepared() -> ApiError {
    ApiError::failed("internal error while preparing a part of the audio; see the server's log")
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.state.metrics.record_generation("abandoned");
        }
    }
}

/// An event of a stream.
#[derive(Serialize)]
#[serde(tag = "type")]
enum StreamEvent<'a> {
    #[serde(rename = "transcript.text.delta")]
    Delta { delta: &'a str },
    #[serde(rename = "transcript.text.done")]
    Done { text: &'a str },
}

/// The state of a stream; `None` after its end.
type StreamState = Option<(Running, RequestGuard)>;

/// Returns the events of a streamed transcription.
pub(crate) fn events(
    running: Running,
    guard: RequestGuard,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    // The computation of a part must not be dropped at a keep-alive, so it runs in a separate task of the stream.
    let texts = unfold((Some((running, guard)) as StreamState, true), |(state, is_first)| async move {
        let (mut running, mut guard) = state?;
        match running.next(&mut guard).await {
            Ok(Some(text)) => {
                let text = if is_first { text.trim_start() } else { &text };
                let bytes =
                    if text.is_empty() { Bytes::new() } else { data(&StreamEvent::Delta { delta: text }) };
                Some((bytes, (Some((running, guard)), is_first && text.is_empty())))
            }
            end => {
                let last = match end.and_then(|_| running.transcript()) {
                    Ok(transcript) => data(&StreamEvent::Done { text: &transcript.text() }),
                    Err(error) => {
                        tracing::warn!(error = error.message(), "a stream failed");
                        data(&error.response())
                    }
                };
                Some((Bytes::from([last.as_ref(), b"data: [DONE]\n\n"].concat()), (None, false)))
            }
        }
    });
    let texts = Box::pin(texts.filter(|bytes| std::future::ready(!bytes.is_empty())));
    unfold(texts, move |mut texts| async move {
        match tokio::time::timeout(keep_alive, texts.next()).await {
            Ok(bytes) => Some((Ok(bytes?), texts)),
            Err(_) => Some((Ok(Bytes::from_static(b": keep-alive\n\n")), texts)),
        }
    })
}

fn data(event: &impl Serialize) -> Bytes {
    // Serializing cannot fail for these types.
    Bytes::from(format!("data: {}\n\n", serde_json::to_string(event).unwrap_or_default()))
}
