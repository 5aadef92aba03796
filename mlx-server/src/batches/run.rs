//! Runs batches: a bounded number of lines at the same time, until the batch ends, is cancelled or expires, or the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::task::{JoinError, JoinSet};

use super::feed::{Feed, LineReader, Next};
use super::line::{Entry, LineError};
use super::record::{BatchRecord, Failure, Status};
use super::results::Results;
use super::send::Sender;
use super::{Batch, Batches};
use crate::error::ApiError;
use crate::files::{FileError, blocking};
use crate::ids::random_id;
use crate::state::AppState;
use crate::time;

/// The maximum number of lines of a batch.
const MAX_LINES: u64 = 50_000;

/// The reason that no further line of a batch runs.
enum Stop {
    /// All lines have a result.
    Done,
    /// The client cancelled the batch.
    Cancelled,
    /// The time of the batch is over.
    Expired,
    /// The server stops. The batch continues after the next start.
    Shutdown,
}

/// Continues the batches of earlier runs of the server. `app` answers their lines.
pub(crate) fn resume(state: &AppState, app: &Router) {
    let Some(batches) = &state.batches else { return };
    for batch in batches.unfinished() {
        tracing::info!(batch = batch.record().id, "continues a batch");
        start(state, app.clone(), batch);
    }
}

/// Runs a batch in the background. `app` answers its lines.
pub(crate) fn start(state: &AppState, app: Router, batch: Arc<Batch>) {
    let Some(batches) = state.batches.clone() else { return };
    let state = state.clone();
    tokio::spawn(async move {
        let outcome = tokio::select! {
            _permit = batches.running.acquire() => run(&state, app, &batches, &batch).await,
            // It ends without a line, so it needs no permit.
            () = batch.cancelled.cancelled() => run(&state, app, &batches, &batch).await,
        };
        if let Err(error) = outcome {
            let failure = Failure { code: error.code().to_owned(), message: error.message() };
            let ended = batches.change(&batch, |record| {
                record.failure = Some(failure);
                record.enter(Status::Failed);
            });
            tracing::error!(
                batch = batch.record().id,
                error = error.message(),
                saved = ended.is_ok(),
                "a batch failed"
            );
        }
    });
}

async fn run(state: &AppState, app: Router, batches: &Arc<Batches>, batch: &Batch) -> Result<(), ApiError> {
    let record = batch.record();
    if record.status == Status::Cancelling {
        // Cancelled before a restart.
        batch.cancelled.cancel();
    }
    let max_len = state.config.limits.max_body;
    let (files, input) = (Arc::clone(&batches.files), record.input.clone());
    let reader = move || Ok::<_, FileError>(LineReader::new(files.read(&input)?, max_len));
    let total = count(reader.clone()).await?;
    batches.change(batch, |record| {
        record.total = total;
        record.enter(Status::InProgress);
    })?;
    let (files, opened) = (Arc::clone(&batches.files), record.clone());
    let results = blocking(move || Results::open(&files, &opened)).await?;
    let feed = Feed::new(reader()?, &record.endpoint, results.done.clone());
    let (client, slots) = (record.client.unwrap_or_default(), Arc::clone(&batches.lines));
    let sender = Sender::new(state, app, client, &record.endpoint, slots);
    let mut run = Run { batch, record: &record, results: Some(results) };
    let stop = run.lines(state, batches, feed, &sender).await;
    let stop = match stop {
        Ok(Stop::Shutdown) => return Ok(()),
        Ok(Stop::Expired) => {
            let results = run.results.as_ref().map(|results| results.done.clone()).unwrap_or_default();
            run.expire(Feed::new(reader()?, &record.endpoint, results)).await.map(|()| Status::Expired)
        }
        Ok(Stop::Cancelled) => Ok(Status::Cancelled),
        Ok(Stop::Done) => Ok(Status::Completed),
        Err(error) => Err(error),
    };
    run.finish(batches, stop).await
}

/// Counts the lines of an input file.
async fn count(
    reader: impl FnOnce() -> Result<LineReader, FileError> + Send + 'static,
) -> Result<u64, ApiError> {
    let count = move || {
        let (mut reader, mut count) = (reader()?, 0);
        while reader.next().map_err(|error| unreadable(&error))?.is_some() {
            count += 1;
            if count > MAX_LINES {
                let message = format!("has more than {MAX_LINES} lines; make several batches");
                return Err(ApiError::field("input_file_id", message));
            }
        }
        Ok(count)
    };
    match blocking(count).await? {
        0 => Err(ApiError::field("input_file_id", "has no line; write a request into each line")),
        count => Ok(count),
    }
}

/// A batch in progress.
struct Run<'a> {
    batch: &'a Batch,
    record: &'a BatchRecord,
    /// Absent only while it is written.
    results: Option<Results>,
}

impl Run<'_> {
    /// Runs the lines that have no result.
    async fn lines(
        &mut self,
        state: &AppState,
        batches: &Batches,
        mut feed: Feed,
        sender: &Sender,
    ) -> Result<Stop, ApiError> {
        let mut running: JoinSet<Entry> = JoinSet::new();
        let (mut next, mut has_more) = (None, true);
        let left = Duration::from_secs(self.record.expires.saturating_sub(time::now()));
        let mut expired = std::pin::pin!(tokio::time::sleep(left));
        loop {
            if next.is_none() && has_more {
                let read;
                (feed, read) = next_of(feed).await?;
                match read {
                    None => has_more = false,
                    Some(Next { line, custom_id, request: Err(error) }) => {
                        self.add(failed(line, custom_id, error)).await?;
                    }
                    Some(Next { line, request: Ok(request), .. }) => next = Some((line, request)),
                }
            }
            if let Some((line, request)) = next.take_if(|_| running.len() < batches.line_count) {
                running.spawn(sender.clone().send(line, request.custom_id, request.body));
            }
            if next.is_none() && !has_more && running.is_empty() {
                return Ok(Stop::Done);
            }
            tokio::select! {
                biased;
                () = self.batch.cancelled.cancelled() => return Ok(Stop::Cancelled),
                () = state.shutdown.draining.cancelled() => return Ok(Stop::Shutdown),
                () = &mut expired => return Ok(Stop::Expired),
                Some(entry) = running.join_next() => self.add(entry.map_err(|error| panicked(&error))?).await?,
                // The next line can be read.
                () = std::future::ready(()), if next.is_none() && has_more => {}
            }
        }
    }

    /// Adds an error for each line that has no result.
    async fn expire(&mut self, mut feed: Feed) -> Result<(), ApiError> {
        loop {
            let read;
            (feed, read) = next_of(feed).await?;
            let Some(Next { line, custom_id, .. }) = read else { return Ok(()) };
            let message = "the line did not run before the completion window of the batch ended";
            self.add(failed(line, custom_id, LineError::new(line, "batch_expired", message))).await?;
        }
    }

    /// Writes a result.
    async fn add(&mut self, entry: Entry) -> Result<(), ApiError> {
        let Some(mut results) = self.results.take() else { return Ok(()) };
        let (results, outcome) = blocking(move || {
            let outcome = results.add(&entry);
            Ok::<_, FileError>((results, outcome))
        })
        .await?;
        let mut record = self.batch.lock();
        (record.counts, record.usage) = (results.counts, results.usage);
        drop(record);
        self.results = Some(results);
        Ok(outcome?)
    }

    /// Completes the result files, then the batch.
    async fn finish(self, batches: &Batches, ended: Result<Status, ApiError>) -> Result<(), ApiError> {
        let Some(results) = self.results else { return ended.map(drop) };
        batches.change(self.batch, |record| record.enter(Status::Finalizing))?;
        let (id, client) = (self.record.id.clone(), self.record.client.unwrap_or_default());
        let (counts, usage) = (results.counts, results.usage);
        let has_results = blocking(move || results.finish(&id, client)).await?;
        let failure = ended.as_ref().err();
        let failure =
            failure.map(|error| Failure { code: error.code().to_owned(), message: error.message() });
        let status = ended.unwrap_or(Status::Failed);
        batches.change(self.batch, |record| {
            (record.counts, record.usage, record.has_results) = (counts, usage, has_results);
            record.failure = failure;
            record.enter(status);
        })?;
        let (completed, failed) = (counts.completed, counts.failed);
        tracing::info!(batch = self.record.id, status = status.name(), completed, failed, "batch");
        Ok(())
    }
}

/// Returns the next line without a result.
async fn next_of(mut feed: Feed) -> Result<(Feed, Option<Next>), ApiError> {
    blocking(move || feed.next().map(|next| (feed, next)).map_err(|error| unreadable(&error))).await
}

fn failed(line: u64, custom_id: Option<String>, error: LineError) -> Entry {
    Entry { id: format!("batch_req_{}", random_id()), line, custom_id, response: None, error: Some(error) }
}

fn unreadable(error: &std::io::Error) -> ApiError {
    tracing::error!(%error, "the input of a batch cannot be read");
    ApiError::failed("the input file cannot be read; see the server's log")
}

fn panicked(error: &JoinError) -> ApiError {
    tracing::error!(%error, "a line of a batch panicked");
    ApiError::failed("internal error; see the server's log")
}
