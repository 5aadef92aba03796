//! Runs transcriptions: window by window, within the engine's queue. Dropping one cancels it.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use mlx_audio::{Limits, LogMel};
use mlx_core::engine::{Event, RequestOptions};
use mlx_core::speech::language_name;
use mlx_core::transcription::{Segment, Transcript, Transcription, TranscriptionOptions, Translate};
use mlx_core::{Error, SamplingOptions};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::error::ApiError;
use crate::generation::Origin;
use crate::models::Lease;
use crate::protocol::openai::audio::AudioRequest;
use crate::request_guard::RequestGuard;
use crate::work::CancelFlag;

/// The time after which a window is submitted again if the queue was full.
const RETRY: Duration = Duration::from_millis(500);

/// A running transcription.
pub(crate) struct Running {
    /// `None` while a thread prepares the request of the next window, and after that failed.
    transcription: Option<Box<Transcription>>,
    duration: f64,
    language: String,
    task: &'static str,
    segments: Vec<Segment>,
    bytes: usize,
    // Must be the last field, so that it is dropped last: the lease keeps the engine, which must not be dropped on an async thread.
    lease: Lease,
}

/// Decodes a file. This takes CPU time, so it belongs on a blocking thread. The features may take up to `memory` bytes.
pub(crate) fn start(
    lease: Lease,
    request: &AudioRequest,
    translate: Translate,
    file: Bytes,
    (origin, memory): (&Origin, u64),
    cancel: &CancelFlag,
) -> Result<Running, ApiError> {
    let not_speech = || ApiError::field("model", "recognizes no speech; use a Whisper model");
    let bins = lease.engine.spec().whisper.ok_or_else(not_speech)?.mel_bins;
    let per_second = (mlx_audio::FRAMES_PER_SECOND * bins * size_of::<f32>()) as u64;
    let limits = Limits::default();
    let seconds = u32::try_from(memory / per_second).unwrap_or(u32::MAX).min(limits.seconds);
    let mut check = || cancel.check().map_err(|_| mlx_audio::Error::Cancelled);
    let audio = LogMel::of_file(file, bins, &Limits { seconds, ..limits }, &mut check);
    let audio = audio.map_err(|error| match error {
        mlx_audio::Error::Cancelled => Error::Cancelled.into(),
        error => ApiError::field("file", format!("cannot be used: {error}")),
    })?;
    let bytes = audio.frames() * bins * size_of::<f32>();
    let mut options = TranscriptionOptions {
        language: request.language.map(str::to_owned),
        translate,
        prompt: request.prompt.clone(),
        ..TranscriptionOptions::default()
    };
    if let Some(temperature) = request.temperature.filter(|temperature| *temperature > 0.0) {
        options.temperatures = vec![temperature];
    }
    let base = RequestOptions {
        client: origin.client,
        priority: request.priority,
        sampling: SamplingOptions { seed: request.seed, ..SamplingOptions::default() },
        ..RequestOptions::default()
    };
    let task = if translate == Translate::ToEnglish { "translate" } else { "transcribe" };
    let transcription = Transcription::new(&lease.engine, audio, options, &base)?;
    let duration = transcription.duration();
    let transcription = Some(Box::new(transcription));
    Ok(Running { transcription, duration, language: String::new(), task, segments: Vec::new(), bytes, lease })
}

impl Running {
    /// Returns the bytes of the features in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the exactness level of the text.
    pub(crate) fn exactness(&self) -> &'static str {
        self.lease.engine.exactness().as_str()
    }

    /// Waits for the whole transcript.
    pub(crate) async fn finish(mut self) -> Result<Transcript, ApiError> {
        while let Some(segments) = self.next().await? {
            self.segments.extend(segments);
        }
        Ok(self.transcript())
    }

    /// Waits for the segments of the next window. `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Segment>>, ApiError> {
        let failed = || ApiError::failed("internal error while preparing a window; see the server's log");
        let transcription = self.transcription.take().ok_or_else(failed)?;
        // An engine in another process checks the request there, which blocks.
        let prepare = move || (transcription.next_request(), transcription);
        let (request, transcription) = spawn_blocking(prepare).await.map_err(|_| failed())?;
        let transcription = self.transcription.insert(transcription);
        let Some(request) = request? else {
            let code = transcription.language().unwrap_or("en");
            language_name(code).unwrap_or(code).clone_into(&mut self.language);
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
        while let Some(event) = events.next().await {
            match event {
                Event::Window(window) => result = Some(*window),
                Event::Done(end) => {
                    return Ok(Some(transcription.accept_end(result, &end.reason, &end.usage)?));
                }
                _ => {}
            }
        }
        Err(ApiError::failed("the engine returned no result"))
    }

    fn transcript(&mut self) -> Transcript {
        Transcript {
            task: self.task,
            language: std::mem::take(&mut self.language),
            duration: self.duration,
            segments: std::mem::take(&mut self.segments),
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
        let (mut running, guard) = state?;
        match running.next().await {
            Ok(Some(segments)) => {
                let is_first = running.segments.is_empty();
                let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
                running.segments.extend(segments);
                let text = if is_first { text.trim_start() } else { &text };
                let bytes =
                    if text.is_empty() { Bytes::new() } else { data(&StreamEvent::Delta { delta: text }) };
                Some((bytes, Some((running, guard))))
            }
            Ok(None) => {
                let done = data(&StreamEvent::Done { text: &running.transcript().text() });
                Some((Bytes::from([done.as_ref(), b"data: [DONE]\n\n"].concat()), None))
            }
            Err(error) => {
                tracing::warn!(error = error.message(), "a stream failed");
                Some((Bytes::from([data(&error.response()).as_ref(), b"data: [DONE]\n\n"].concat()), None))
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
