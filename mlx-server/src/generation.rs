//! The generations of a request: submitted, followed event by event, measured.

use std::time::Instant;

use futures_util::Stream;
use futures_util::stream::unfold;
use mlx_core::engine::{Event, FinishReason, Generation, GenerationRequest, Usage};

use crate::error::ApiError;
use crate::models::Lease;
use crate::reasoning::{Parts, Splitter};
use crate::state::AppState;
use crate::wire::logprobs::Token;

/// What is new of one of a request's answers.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Which answer.
    pub(crate) choice: usize,
    /// More of what is said.
    pub(crate) content: String,
    /// More of what is thought.
    pub(crate) reasoning: String,
    /// Tokens of the prompt that were scored.
    pub(crate) prompt: Vec<Token>,
    /// Tokens that were drawn.
    pub(crate) tokens: Vec<Token>,
    /// Set when the answer has ended.
    pub(crate) end: Option<End>,
}

/// How an answer ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// `stop` or `length`.
    pub(crate) reason: &'static str,
    /// Tokens in and out.
    pub(crate) usage: Usage,
}

impl Piece {
    fn add(&mut self, parts: &Parts) {
        self.reasoning.push_str(&parts.reasoning);
        self.content.push_str(&parts.content);
    }

    /// Adds what came after this piece.
    pub(crate) fn extend(&mut self, next: Self) {
        self.content.push_str(&next.content);
        self.reasoning.push_str(&next.reasoning);
        self.prompt.extend(next.prompt);
        self.tokens.extend(next.tokens);
        self.end = next.end.or(self.end.take());
    }
}

/// One generation that runs. Dropping it cancels.
pub(crate) struct Choice {
    index: usize,
    generation: Generation,
    splitter: Option<Splitter>,
    state: AppState,
    clock: Clock,
    ended: bool,
    // Let go last: an engine must not be dropped on an async thread, and the lease keeps it.
    lease: Lease,
}

/// When things happened.
struct Clock {
    begun: Instant,
    last: Option<Instant>,
}

impl Choice {
    /// Hands a request to the engine.
    pub(crate) fn submit(
        index: usize,
        request: GenerationRequest,
        splitter: Option<Splitter>,
        state: &AppState,
        lease: &Lease,
    ) -> Result<Self, ApiError> {
        let generation = lease.engine.submit(request)?;
        let clock = Clock { begun: Instant::now(), last: None };
        let (state, lease) = (state.clone(), lease.clone());
        Ok(Self { index, generation, splitter, state, clock, ended: false, lease })
    }

    /// The answer as it comes; it ends after a piece with an end, or after an error.
    pub(crate) fn pieces(self) -> impl Stream<Item = Result<Piece, ApiError>> + Send {
        unfold(self, |mut choice| async move { Some((choice.next().await?, choice)) })
    }

    /// The whole answer.
    pub(crate) async fn whole(mut self) -> Result<Piece, ApiError> {
        let mut all = Piece { choice: self.index, ..Piece::default() };
        while let Some(piece) = self.next().await {
            all.extend(piece?);
        }
        Ok(all)
    }

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        if self.ended {
            return None;
        }
        let event = self.event().await?;
        Some(self.follow(event))
    }

    /// The next event. When the server must end now, the generation is told to, and soon says so.
    async fn event(&mut self) -> Option<Event> {
        let forced = &self.state.shutdown.forced;
        tokio::select! {
            event = self.generation.next() => return event,
            () = forced.cancelled() => self.generation.canceller().cancel(),
        }
        self.generation.next().await
    }

    fn follow(&mut self, event: Event) -> Result<Piece, ApiError> {
        let mut piece = Piece { choice: self.index, ..Piece::default() };
        match event {
            Event::Prompt(token) => {
                piece.prompt.push(Token { id: token.id, text: token.text, logprob: token.logprob });
            }
            // No route asks for one yet.
            Event::Embedding(_) => {}
            Event::Token(token) => {
                self.tick();
                self.hear_tag(&mut piece, token.id);
                self.say(&mut piece, &token.delta);
                piece.tokens.push(Token { id: token.id, text: token.text, logprob: token.logprob });
            }
            Event::Done(finished) => {
                self.ended = true;
                self.state.metrics.generated(finished.reason.as_str());
                self.say(&mut piece, &finished.delta);
                if let Some(splitter) = &mut self.splitter {
                    piece.add(&splitter.finish());
                }
                piece.end = Some(End { reason: reason(&finished.reason)?, usage: finished.usage });
            }
        }
        Ok(piece)
    }

    /// Text that is held back for a stop string may come after a tag that came after it; that is rare, and loses nothing.
    fn hear_tag(&mut self, piece: &mut Piece, token: u32) {
        let tag = self.lease.silent_tags.iter().find(|(id, _)| *id == token);
        if let (Some((_, tag)), Some(splitter)) = (tag, &mut self.splitter) {
            piece.add(&splitter.push_tag(tag));
        }
    }

    fn say(&mut self, piece: &mut Piece, text: &str) {
        match &mut self.splitter {
            None => piece.content.push_str(text),
            Some(splitter) => {
                piece.add(&splitter.push(text));
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        match self.clock.last.replace(now) {
            None => self.state.metrics.first_token.observe(now - self.clock.begun),
            Some(last) => self.state.metrics.next_token.observe(now - last),
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if !self.ended {
            self.state.metrics.generated("abandoned");
        }
    }
}

/// A failure or a cancellation is never dressed up as a stop.
fn reason(reason: &FinishReason) -> Result<&'static str, ApiError> {
    match reason {
        FinishReason::EndToken | FinishReason::StopString(_) | FinishReason::Length => Ok(reason.as_str()),
        // Only the end of the server cancels a generation that somebody still reads.
        FinishReason::Cancelled => Err(ApiError::shutting_down()),
        FinishReason::Error(message) => Err(ApiError::failed(message)),
    }
}
