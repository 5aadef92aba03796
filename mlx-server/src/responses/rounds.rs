//! Generations of one response, with calls of MCP servers' tools between them. Invariant: the conversation of each generation is that of the
//! stored items, so later requests reuse its prefix.

use chat_format::{Part, Role};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use mlx_core::engine::Usage;
use tokio::sync::mpsc;

use super::chat::{ResultReader, chat_request};
use super::mcp::Servers;
use crate::delta::{CallResult, Delta, End, EndReason, McpCall, McpEvent};
use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::prepare;
use crate::protocol::responses::item::Item;
use crate::protocol::responses::mcp_item::McpItem;
use crate::protocol::responses::request::ResponseRequest;
use crate::protocol::responses::tools::ToolKind;
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::stream::Deltas;

/// The maximum number of generations with calls in one response.
const MAX_ROUNDS: usize = 32;

/// The generations of a response.
pub(super) struct Rounds {
    pub(super) state: AppState,
    pub(super) origin: Origin,
    pub(super) request: ResponseRequest,
    /// The conversation so far.
    pub(super) items: Vec<Item>,
    pub(super) servers: Servers,
    pub(super) count: Counts,
}

/// The amounts of all generations so far.
#[derive(Default)]
pub(super) struct Counts {
    usage: Usage,
    reasoning_tokens: usize,
    rounds: usize,
    calls: usize,
}

/// The items of a generation, in its order.
#[derive(Default)]
struct Turn {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

impl Rounds {
    /// Returns the deltas of all generations, which begin with the events `before`. Dropping the stream ends the current generation or call.
    pub(super) fn deltas(mut self, first: Choice, before: Vec<McpEvent>) -> Deltas {
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                outcome = self.run(first, before, &sender) => {
                    if let Err(error) = outcome {
                        sender.send(Err(error)).await.ok();
                    }
                }
            }
        });
        unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }).boxed()
    }

    async fn run(&mut self, first: Choice, before: Vec<McpEvent>, sender: &Sender) -> Result<(), ApiError> {
        for event in before {
            work(sender, event).await;
        }
        let mut next = Some(first);
        while let Some(choice) = next {
            next = self.round(choice, sender).await?;
        }
        Ok(())
    }

    /// Sends the deltas of a generation and runs its calls. Returns the next generation, unless the response ends.
    async fn round(&mut self, choice: Choice, sender: &Sender) -> Result<Option<Choice>, ApiError> {
        let (mut turn, mut end) = (Turn::default(), None);
        let mut deltas = Box::pin(choice.deltas());
        while let Some(delta) = deltas.next().await {
            let mut delta = delta?;
            end = delta.end.take();
            turn.add(&delta);
            sender.send(Ok(delta)).await.ok();
        }
        let Some(mut end) = end else { return Ok(None) };
        self.count.add(&end);
        let has_calls = Box::pin(self.run_calls(&end, turn, sender)).await;
        let left = self
            .request
            .spec
            .options
            .max_tokens
            .map(|max| max.saturating_sub(self.count.usage.completion_tokens));
        if !has_calls || left == Some(0) {
            if has_calls {
                end.reason = EndReason::Length;
            }
            (end.usage, end.reasoning_tokens) = (self.count.usage, self.count.reasoning_tokens);
            sender.send(Ok(Delta { end: Some(end), ..Delta::default() })).await.ok();
            return Ok(None);
        }
        Box::pin(self.next(left)).await.map(Some)
    }

    /// Runs the calls of a generation, and adds its items to the conversation. Returns true if the model continues: there were calls, and all of
    /// them have results.
    async fn run_calls(&mut self, end: &End, turn: Turn, sender: &Sender) -> bool {
        let called = |(name, arguments): &(String, String)| {
            let tool = self.request.tools.client_tool(name);
            match tool.kind {
                ToolKind::Mcp { label, needs_approval: false } => {
                    Some(McpCall { label, name: tool.name, arguments: arguments.clone() })
                }
                _ => None,
            }
        };
        let calls: Vec<Option<McpCall>> = turn.calls.iter().map(called).collect();
        if end.reason != EndReason::ToolCalls || calls.iter().all(Option::is_none) {
            return false;
        }
        let continues = calls.iter().all(Option::is_some);
        work(sender, McpEvent::Calling).await;
        if !turn.reasoning.is_empty() {
            self.items.push(Item::Reasoning(turn.reasoning));
        }
        if !turn.content.is_empty() {
            let parts = vec![Part::Text(turn.content)];
            self.items.push(Item::Message { role: Role::Assistant, parts });
        }
        for call in calls.into_iter().flatten() {
            self.count.calls += 1;
            let result = if self.request.tools.max_calls.is_some_and(|max| self.count.calls > max) {
                CallResult::Failure("the response has reached max_tool_calls".to_owned())
            } else {
                let result = self.servers.call(&self.state, &call).await;
                let Self { state, origin, request, items, .. } = &*self;
                ResultReader { state, origin, request }.readable(items, &call, result).await
            };
            work(sender, McpEvent::Called(result.clone())).await;
            self.items.push(Item::Mcp(McpItem::Call { call, result, request: None }));
        }
        continues
    }

    /// Starts the next generation, of at most this many tokens.
    async fn next(&mut self, max_tokens: Option<usize>) -> Result<Choice, ApiError> {
        self.count.rounds += 1;
        let is_last = self.count.rounds >= MAX_ROUNDS
            || self.request.tools.max_calls.is_some_and(|max| self.count.calls >= max);
        self.request.tools.relax_choice(is_last);
        let mut chat = chat_request(&self.request, &self.items)?;
        chat.spec.options.max_tokens = max_tokens;
        let guard = RequestGuard::new(&self.state, self.state.bodies.charge(), 0, self.origin.clone());
        let prepared = prepare::start_chat(&self.state, chat, guard).await;
        let prepared = prepared.map_err(|error| error.rename_field("messages", "input"))?;
        prepared.choices.into_iter().next().ok_or_else(|| ApiError::failed("the model returned no answer"))
    }
}

type Sender = mpsc::Sender<Result<Delta, ApiError>>;

/// Sends an event of the server's work. The reader may be gone; then the task ends soon.
async fn work(sender: &Sender, event: McpEvent) {
    sender.send(Ok(Delta { mcp: Some(event), ..Delta::default() })).await.ok();
}

impl Counts {
    fn add(&mut self, end: &End) {
        let Usage { prompt_tokens, cached_tokens, completion_tokens, repeated_tokens, miss, .. } = end.usage;
        self.usage.prompt_tokens += prompt_tokens;
        self.usage.cached_tokens += cached_tokens;
        self.usage.completion_tokens += completion_tokens;
        self.usage.repeated_tokens = repeated_tokens;
        self.usage.miss = self.usage.miss.or(miss);
        self.reasoning_tokens += end.reasoning_tokens;
    }
}

impl Turn {
    fn add(&mut self, delta: &Delta) {
        self.reasoning.push_str(&delta.reasoning);
        self.content.push_str(&delta.content);
        for call in &delta.calls {
            if let Some((_, name)) = &call.head {
                self.calls.push((name.clone(), String::new()));
            }
            if let Some((_, arguments)) = self.calls.last_mut() {
                arguments.push_str(&call.arguments);
            }
        }
    }
}
