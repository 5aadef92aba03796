//! Downloads of models for clients (`--allow-pull`), one at a time. Invariant: a download ends soon after its client has gone or the server
//! stops. Its partial files remain, and the next download of the model continues them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use mlx_core::model::check_config;
use mlx_hub::{Cache, Error, HubName};
use mlx_hub_client::{Download, FileProgress, Progress, is_offline};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::ApiError;
use crate::models::without_folders;

/// The maximum number of unread events. Further ones about progress are dropped.
const MAX_UNREAD: usize = 16;
/// The minimum time between two events about bytes.
const EVENT_PAUSE: Duration = Duration::from_millis(100);
/// The time after which a client may try again while another download is running.
const RETRY_SECONDS: u64 = 10;

/// The downloads of a server.
#[derive(Default)]
pub(crate) struct Downloads {
    latest: Mutex<Option<Running>>,
}

/// A download that is running, or that has ended.
struct Running {
    name: String,
    /// Cancelled when the client has gone or the server stops.
    cancelled: CancellationToken,
    /// Cancelled at the end of the download.
    ended: CancellationToken,
}

/// An event of a download. The last one is `Complete` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DownloadEvent {
    /// The number of bytes of all files that are on disk.
    Bytes { commit: String, total: u64, completed: u64 },
    /// An event for the user, such as a lost connection.
    Note(String),
    /// All files of the model with this name are on disk.
    Complete(String),
    /// The cause and the fix.
    Failed(String),
}

/// The events of a download. Dropping them cancels it.
pub(crate) struct DownloadEvents {
    receiver: Receiver<DownloadEvent>,
    has_ended: bool,
    _cancel_on_drop: DropGuard,
}

impl DownloadEvents {
    /// Returns the next event; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<DownloadEvent> {
        if self.has_ended {
            return None;
        }
        let event = self.receiver.recv().await;
        // A download that panicked sends no last event.
        let event = event.unwrap_or_else(|| DownloadEvent::Failed("the download was interrupted".to_owned()));
        self.has_ended = matches!(event, DownloadEvent::Complete(_) | DownloadEvent::Failed(_));
        Some(event)
    }
}

impl Downloads {
    /// Starts a download. Fails if another one is running. Waits for the end of a cancelled one.
    pub(crate) async fn start(
        &self,
        name: HubName,
        shutdown: &CancellationToken,
    ) -> Result<DownloadEvents, ApiError> {
        let unavailable =
            |message| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "download_unavailable", message);
        if is_offline() {
            let message = "the server may not use the network; start it without HF_HUB_OFFLINE";
            return Err(unavailable(message.to_owned()));
        }
        let (cancelled, ended) = (shutdown.child_token(), CancellationToken::new());
        while let Some(end_of_other) = self.begin(&name, &cancelled, &ended)? {
            end_of_other.cancelled().await;
        }
        let (sender, receiver) = channel(MAX_UNREAD);
        let (cancel_on_drop, ends) = (cancelled.clone().drop_guard(), ended.drop_guard());
        let work = move || {
            let last = match download(&name, &cancelled, &sender) {
                Ok(name) => DownloadEvent::Complete(name),
                Err(reason) => DownloadEvent::Failed(reason),
            };
            drop(ends);
            // Fails only if the client has gone.
            sender.blocking_send(last).ok();
        };
        // A download may take hours, and the server does not wait for this thread when it ends.
        let thread = std::thread::Builder::new().name("download".to_owned()).spawn(work);
        thread.map_err(|error| unavailable(format!("the download cannot be started: {error}")))?;
        Ok(DownloadEvents { receiver, has_ended: false, _cancel_on_drop: cancel_on_drop })
    }

    /// Records a download as the running one. If a cancelled one has not ended yet, returns the token for its end instead.
    fn begin(
        &self,
        name: &HubName,
        cancelled: &CancellationToken,
        ended: &CancellationToken,
    ) -> Result<Option<CancellationToken>, ApiError> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = latest.as_ref().filter(|other| !other.ended.is_cancelled()) {
            if other.cancelled.is_cancelled() {
                return Ok(Some(other.ended.clone()));
            }
            let message = format!("{} is being downloaded; wait for its end, or cancel it", other.name);
            return Err(ApiError::busy(message, RETRY_SECONDS));
        }
        let (name, cancelled, ended) = (name.to_string(), cancelled.clone(), ended.clone());
        *latest = Some(Running { name, cancelled, ended });
        Ok(None)
    }
}

/// Downloads a model and returns its name. Fails with the reason, without folders of this machine.
fn download(
    name: &HubName,
    cancelled: &CancellationToken,
    sender: &Sender<DownloadEvent>,
) -> Result<String, String> {
    let begin = Instant::now();
    let result = Download::find(name).and_then(|download| {
        let unsupported =
            |reason: &str| Error::hub(download.name(), format!("this server cannot run the model: {reason}"));
        if download.lacks_tokenizer() {
            return Err(unsupported("it has no tokenizer.json on the Hub"));
        }
        let check = |path: &Path| {
            check_config(path).map_err(|error| unsupported(&without_folders(&error.to_string(), path)))
        };
        let progress = Counter::new(&download, cancelled, sender);
        download.run(&progress, check)?;
        progress.send(download.bytes());
        Ok(download.name().to_string())
    });
    let seconds = begin.elapsed().as_secs_f64();
    match result {
        Ok(name) => {
            tracing::info!(model = name, seconds, "a model was downloaded");
            Ok(name)
        }
        Err(error) => {
            tracing::warn!(model = %name, %error, "a download ended early");
            let text = error.to_string();
            Err(Cache::from_env().map_or(text.clone(), |cache| without_folders(&text, cache.root())))
        }
    }
}

/// Counts the bytes of all files and sends them to the client.
struct Counter<'a> {
    commit: &'a str,
    total: u64,
    cancelled: &'a CancellationToken,
    sender: &'a Sender<DownloadEvent>,
    /// The number of bytes on disk, and the time of the last event.
    state: Mutex<(u64, Option<Instant>)>,
}

impl<'a> Counter<'a> {
    fn new(
        download: &'a Download,
        cancelled: &'a CancellationToken,
        sender: &'a Sender<DownloadEvent>,
    ) -> Self {
        let (commit, total) = (download.commit(), download.bytes());
        Self { commit, total, cancelled, sender, state: Mutex::default() }
    }

    /// Replaces the counted bytes of a file.
    fn count(&self, before: u64, now: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = state.0.saturating_sub(before) + now;
        if state.1.is_none_or(|sent| sent.elapsed() >= EVENT_PAUSE) {
            state.1 = Some(Instant::now());
            self.send(state.0);
        }
    }

    /// Sends the number of bytes, unless the client has not read the events before.
    fn send(&self, completed: u64) {
        let (commit, total) = (self.commit.to_owned(), self.total);
        self.sender.try_send(DownloadEvent::Bytes { commit, total, completed }).ok();
    }
}

impl Progress for Counter<'_> {
    fn file<'a>(&'a self, name: &'a str) -> Box<dyn FileProgress + 'a> {
        Box::new(File { all: self, name, counted: AtomicU64::new(0) })
    }
}

/// The progress of one file.
struct File<'a> {
    all: &'a Counter<'a>,
    name: &'a str,
    /// The bytes of the file that are counted.
    counted: AtomicU64,
}

impl File<'_> {
    fn count(&self, bytes: u64) {
        self.all.count(self.counted.swap(bytes, Ordering::Relaxed), bytes);
    }
}

impl FileProgress for File<'_> {
    fn verified(&self, bytes: u64) {
        self.count(bytes);
    }

    fn received(&self, bytes: u64) {
        self.count(bytes);
    }

    fn resumed(&self, bytes: u64) {
        self.count(bytes);
    }

    fn note(&self, line: &str) {
        self.all.sender.try_send(DownloadEvent::Note(format!("{}: {line}", self.name))).ok();
    }

    fn is_cancelled(&self) -> bool {
        self.all.cancelled.is_cancelled()
    }

    fn done(&self, size: u64) {
        self.count(size);
    }
}
