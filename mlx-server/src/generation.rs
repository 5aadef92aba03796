//! The running generations of a request: submits them, turns their events into deltas, and measures them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chat_format::{ChatEvent, OutputParser};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use mlx_core::chat::AnswerReader;
use mlx_core::engine::{
    Client, Event, EventStream, FinishReason, Finished, Generation, GenerationRequest, Miss, RequestOptions,
    Usage,
};

use crate::delta::{CallDelta, Delta, End, EndReason, Progress, Token};
use crate::error::ApiError;
use crate::ids::random_id;
use crate::models::Lease;
use crate::request_log::RequestId;
use crate::state::AppState;

/// The minimum cost of a prefix cache miss that is logged, in tokens.
const MIN_LOGGED_MISS: usize = 64;

/// The client and the id of a request.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The client, for fair scheduling.
    pub(crate) client: Client,
    /// The id of the request, for the log.
    pub(crate) id: RequestId,
}

impl Origin {
    /// Returns options with the client and the id of the request.
    pub(crate) fn options(&self) -> RequestOptions {
        RequestOptions {
            client: self.client,
            log_id: self.id.as_str().to_owned(),
            ..RequestOptions::default()
        }
    }
}

/// A running generation. Dropping it cancels the generation.
pub(crate) struct Choice {
    index: usize,
    /// The client and the id of the request.
    origin: Origin,
    events: EventStream,
    reader: AnswerReader,
    state: AppState,
    clock: Clock,
    /// The number of started tool calls.
    calls: usize,
    /// Deltas to return before the next event is read, oldest first.
    ready: VecDeque<Delta>,
    /// The end or the error. It is sent as a separate delta after the last text, as OpenAI does.
    last: Option<Result<Delta, ApiError>>,
    has_ended: bool,
    // Must be the last field, so that it is dropped last: the lease keeps the engine, which must not be dropped on an async thread.
    lease: Lease,
}

/// The times of the start and of the last token.
struct Clock {
    started: Instant,
    last: Option<Instant>,
}

impl Choice {
    /// Submits all requests of one client to the engine. After an error, none of them runs. Each prompt has this many `choices`.
    pub(crate) fn submit_all(
        requests: Vec<GenerationRequest>,
        parser: &OutputParser,
        state: &AppState,
        lease: &Lease,
        (origin, choices): (&Origin, usize),
    ) -> Result<Vec<Self>, ApiError> {
        let started = Instant::now();
        let prompt_tokens = requests.iter().step_by(choices).map(GenerationRequest::prompt_tokens).sum();
        let start = |(index, generation): (usize, Generation)| Self {
            index,
            origin: origin.clone(),
            reader: AnswerReader::new(parser.clone(), generation.canceller()),
            events: generation.into_stream(),
            state: state.clone(),
            clock: Clock { started, last: None },
            calls: 0,
            ready: VecDeque::new(),
            last: None,
            has_ended: false,
            lease: lease.clone(),
        };
        let running = lease.engine.submit_all(requests)?;
        state.keys.record(origin.client, prompt_tokens, 0);
        Ok(running.into_iter().enumerate().map(start).collect())
    }

    /// Returns the answer as a stream. Its last item is a delta with `end`, or an error.
    pub(crate) fn deltas(self) -> impl Stream<Item = Result<Delta, ApiError>> + Send {
        unfold(self, |mut choice| async move { Some((choice.next().await?, choice)) })
    }

    /// Returns the embedding or the scores of the prompt, and the token counts. The list is empty if the request did not ask for any.
    pub(crate) async fn values(mut self) -> Result<(Vec<f32>, Usage), ApiError> {
        let mut values = Vec::new();
        while let Some(event) = self.event().await {
            if let Event::Embedding(all) | Event::Scores(all) = event {
                values = all;
            } else {
                self.process(event);
            }
        }
        let end = self.last.take().and_then(|last| last.map(|delta| delta.end).transpose());
        let end = end.unwrap_or_else(|| Err(ApiError::failed("the engine returned no result")))?;
        Ok((values, end.usage))
    }

    /// Returns the complete answer, in as few deltas as its order allows.
    pub(crate) async fn collect(mut self) -> Result<Vec<Delta>, ApiError> {
        let mut all = vec![Delta { choice: self.index, ..Delta::default() }];
        while let Some(delta) = self.next().await {
            let delta = delta?;
            match all.last_mut().filter(|last| last.continues_with(&delta)) {
                Some(last) => last.extend(delta),
                None => all.push(delta),
            }
        }
        Ok(all)
    }

    async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        if let Some(delta) = self.ready.pop_front() {
            return Some(Ok(delta));
        }
        if self.has_ended {
            return self.last.take();
        }
        let event = self.event().await?;
        let delta = self.process(event);
        let silent = delta.has_no_output();
        if self.has_ended && silent { self.last.take() } else { Some(Ok(delta)) }
    }

    /// Returns the next event. On a forced shutdown it cancels the generation, whose stream then ends soon.
    async fn event(&mut self) -> Option<Event> {
        let forced = &self.state.shutdown.forced;
        tokio::select! {
            event = self.events.next() => return event,
            () = forced.cancelled() => self.reader.canceller().cancel(),
        }
        self.events.next().await
    }

    fn process(&mut self, mut event: Event) -> Delta {
        let mut delta = Delta { choice: self.index, ..Delta::default() };
        let events = self.reader.read(&mut event);
        match event {
            Event::Prompt(token) => delta.prompt.push(Token { id: token.id, logprob: token.logprob }),
            // `values` reads embeddings and scores itself.
            Event::Embedding(_) | Event::Scores(_) | Event::Window(_) => {}
            Event::PromptProgress { read, total, cached, seconds } => {
                let time_ms = (seconds * 1e3) as u64;
                delta.progress = Some(Progress { total, cache: cached, processed: read, time_ms });
            }
            Event::Token(token) => {
                self.state.keys.record(self.origin.client, 0, 1);
                self.record_token_time();
                delta.tokens.push(Token { id: token.id, logprob: token.logprob });
                delta = self.add(delta, events);
            }
            Event::Done(finished) => {
                self.has_ended = true;
                self.state.metrics.record_generation(finished.reason.as_str());
                self.log(&finished);
                if let Some(traces) = &self.state.traces {
                    let id = &self.origin.id;
                    traces.record(id.span(), &self.lease.name, id.as_str(), &finished);
                }
                // Every turn of a chat diverges from the cached prompt shortly before its end; only larger misses are logged.
                if let Some(Miss { at, cached }) =
                    finished.usage.miss.filter(|miss| miss.cached - miss.at >= MIN_LOGGED_MISS)
                {
                    tracing::info!(
                        id = self.origin.id.as_str(),
                        at,
                        cached,
                        "prefix cache miss: the prompt diverges from a cached one at this token"
                    );
                }
                delta = self.add(delta, events);
                // Text before a failure is valid and is sent first.
                self.last = Some(self.reason(&finished.reason).map(|reason| {
                    let reasoning_tokens = self.reader.reasoning_tokens();
                    let end = Some(End {
                        reason,
                        usage: finished.usage,
                        timings: finished.timings,
                        reasoning_tokens,
                    });
                    Delta { choice: self.index, end, ..Delta::default() }
                }));
                self.state.metrics.queue.observe(Duration::from_secs_f64(finished.timings.queue.max(0.0)));
            }
        }
        delta
    }

    /// Adds events to a delta. Events that do not fit its order become separate deltas in `ready`.
    fn add(&mut self, mut delta: Delta, events: Vec<ChatEvent>) -> Delta {
        let mut deltas = VecDeque::new();
        for event in events {
            let is_call = !matches!(event, ChatEvent::Text(_) | ChatEvent::Reasoning(_));
            if !delta.calls.is_empty() || is_call && !delta.has_no_output() {
                deltas.push_back(std::mem::take(&mut delta));
                delta.choice = self.index;
            }
            match event {
                ChatEvent::Text(text) => delta.content.push_str(&text),
                ChatEvent::Reasoning(text) => delta.reasoning.push_str(&text),
                ChatEvent::CallStart { name, .. } => {
                    let (index, head) = (self.calls, Some((random_id(), name)));
                    self.calls += 1;
                    delta.calls.push(CallDelta { index, head, arguments: String::new() });
                }
                ChatEvent::Args(arguments) => {
                    let index = self.calls.saturating_sub(1);
                    delta.calls.push(CallDelta { index, head: None, arguments });
                }
                ChatEvent::CallEnd => {}
            }
        }
        deltas.push_back(delta);
        let first = deltas.pop_front().unwrap_or_default();
        self.ready.extend(deltas.into_iter().filter(|delta| !delta.has_no_output()));
        first
    }

    /// Maps the reason that the engine reports. A failure or a cancellation is an error.
    fn reason(&self, reason: &FinishReason) -> Result<EndReason, ApiError> {
        match reason {
            FinishReason::EndToken | FinishReason::StopString(_) if self.calls > 0 => {
                Ok(EndReason::ToolCalls)
            }
            FinishReason::Length if self.reader.has_ended() => Ok(EndReason::ToolCalls),
            FinishReason::EndToken => Ok(EndReason::EndToken),
            FinishReason::StopString(text) => Ok(EndReason::StopString(text.clone())),
            FinishReason::Length => Ok(EndReason::Length),
            // Only a shutdown cancels a generation that still has a reader.
            FinishReason::Cancelled => Err(ApiError::shutting_down()),
            FinishReason::Error(message) => Err(ApiError::failed(message)),
        }
    }

    /// Logs the token counts and timings of an answer.
    fn log(&self, finished: &Finished) {
        let Finished { usage, timings, .. } = finished;
        let tenth = |value: f64| (value * 10.0).round() / 10.0;
        tracing::info!(
            id = self.origin.id.as_str(),
            model = self.lease.model_name(),
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            tokens_per_second = tenth(usage.decode_rate(timings)),
            first_token_ms = tenth((timings.queue + timings.prefill) * 1e3),
            seconds = (self.clock.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "answer"
        );
    }

    fn record_token_time(&mut self) {
        let now = Instant::now();
        match self.clock.last.replace(now) {
            None => self.state.metrics.first_token.observe(now - self.clock.started),
            Some(last) => self.state.metrics.next_token.observe(now - last),
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if !self.has_ended {
            self.state.metrics.record_generation("abandoned");
        }
    }
}
