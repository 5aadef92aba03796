//! Runs transcriptions: window by window, within the engine's queue. Dropping one cancels it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use mlx_audio::{Limits, LogMel};
use mlx_core::engine::{Event, RequestOptions};
use mlx_core::transcription::{Segment, Transcript, Transcription, TranscriptionOptions, Translate};
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

/// The time after which a window is submitted again if the queue was full.
const RETRY: Duration = Duration::from_millis(500);

/// A running transcription.
pub(crate) struct Running {
    state: AppState,
    origin: Origin,
    started: Instant,
    /// `None` while a thread prepares the request of the next window, and after that failed.
    transcription: Option<Box<Transcription>>,
    segments: Vec<Segment>,
    /// The tokens of all windows so far: prompts and answers.
    spent: (usize, usize),
    has_ended: bool,
    // Must be the last field, so that it is dropped last: the lease keeps the engine, which must not be dropped on an async thread.
    lease: Lease,
}

/// Decodes a file. This takes CPU time, so it belongs on a blocking thread. The features are charged as they grow.
pub(crate) fn start(
    state: &AppState,
    lease: Lease,
    request: &AudioRequest,
    translate: Translate,
    file: Bytes,
    origin: Origin,
    (cancel, charge): (&CancelFlag, &mut Charge),
) -> Result<Running, ApiError> {
    let not_speech = || {
        ApiError::field(
            "model",
            "recognizes no speech; use a Whisper model, or send input_audio in a chat to a model that hears",
        )
    };
    let bins = lease.engine.spec().whisper.ok_or_else(not_speech)?.mel_bins;
    let audio = features(file, bins, cancel, charge)?;
    charge.set(audio.bytes() as u64)?;
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
        segments: Vec::new(),
        spent: (0, 0),
        has_ended: false,
        lease,
    })
}

/// Computes the features of a file, and charges them besides the file.
fn features(file: Bytes, bins: usize, cancel: &CancelFlag, charge: &mut Charge) -> Result<LogMel, ApiError> {
    let (bytes, mut charged, mut full) = (file.len(), 0, None);
    let mut check = |features: usize| {
        cancel.check().map_err(|_| mlx_audio::Error::Cancelled)?;
        if features > charged {
            charged = features;
            charge.set((bytes + features) as u64).map_err(|error| {
                full = Some(error);
                mlx_audio::Error::Cancelled
            })?;
        }
        Ok(())
    };
    let audio = LogMel::of_file(file, bins, &Limits::default(), &mut check);
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
        while let Some(segments) = self.next(guard).await? {
            self.segments.extend(segments);
        }
        self.transcript()
    }

    /// Waits for the segments of the next window, and releases its features. `None` at the end.
    async fn next(&mut self, guard: &mut RequestGuard) -> Result<Option<Vec<Segment>>, ApiError> {
        let transcription = self.transcription.take().ok_or_else(unprepared)?;
        // An engine in another process checks the request there, which blocks.
        let prepare = move || (transcription.next_request(), transcription);
        let (request, transcription) = spawn_blocking(prepare).await.map_err(|_| unprepared())?;
        let transcription = self.transcription.insert(transcription);
        let Some(request) = request? else {
            self.end();
            return Ok(None);
        };
        let generation = loop {
            match self.lease.engine.submit(request.clone()) {
                // The queue is full. A transcription that has begun waits.
                Err(Error::Busy { .. }) if transcription.position() > 0.0 => tokio::time::sleep(RETRY).await,
                generation => break generation?,
            }
        };
        let (mut events, mut result) = (generation.into_stream(), None);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = self.state.shutdown.forced.cancelled() => return Err(ApiError::shutting_down()),
            };
            match event {
                Some(Event::Window(window)) => result = Some(*window),
                Some(Event::Done(end)) => {
                    let segments = transcription.accept_end(result, &end.reason, &end.usage);
                    let usage = transcription.usage();
                    let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
                    let before = std::mem::replace(&mut self.spent, (prompt, completion));
                    let client = self.origin.client;
                    self.state.keys.record(client, prompt - before.0, completion - before.1);
                    guard.set_bytes(transcription.bytes())?;
                    return Ok(Some(segments?));
                }
                Some(_) => {}
                None => return Err(ApiError::failed("the engine returned no result")),
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
    ApiError::failed("internal error while preparing a window; see the server's log")
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

/// Returns the events of a streamed transcription. Segments become deltas.
pub(crate) fn events(
    running: Running,
    guard: RequestGuard,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    // The computation of a window must not be dropped at a keep-alive, so it runs in a separate task of the stream.
    let windows = unfold(Some((running, guard)) as StreamState, |state| async move {
        let (mut running, mut guard) = state?;
        match running.next(&mut guard).await {
            Ok(Some(segments)) => {
                let is_first = running.segments.is_empty();
                let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
                running.segments.extend(segments);
                let text = if is_first { text.trim_start() } else { &text };
                let bytes =
                    if text.is_empty() { Bytes::new() } else { data(&StreamEvent::Delta { delta: text }) };
                Some((bytes, Some((running, guard))))
            }
            end => {
                let last = match end.and_then(|_| running.transcript()) {
                    Ok(transcript) => data(&StreamEvent::Done { text: &transcript.text() }),
                    Err(error) => {
                        tracing::warn!(error = error.message(), "a stream failed");
                        data(&error.response())
                    }
                };
                Some((Bytes::from([last.as_ref(), b"data: [DONE]\n\n"].concat()), None))
            }
        }
    });
    let windows = Box::pin(windows.filter(|bytes| std::future::ready(!bytes.is_empty())));
    unfold(windows, move |mut windows| async move {
        match tokio::time::timeout(keep_alive, windows.next()).await {
            Ok(bytes) => Some((Ok(bytes?), windows)),
            Err(_) => Some((Ok(Bytes::from_static(b": keep-alive\n\n")), windows)),
        }
    })
}

fn data(event: &impl Serialize) -> Bytes {
    // Serializing cannot fail for these types.
    Bytes::from(format!("data: {}\n\n", serde_json::to_string(event).unwrap_or_default()))
}
