//! Computes responses, for requests and for unfinished responses of the journal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mlx_core::engine::Client;
use mlx_json::Value;

use super::chat::{ResultReader, chat_request};
use super::events::Reader;
use super::journal::Record;
use super::mcp::{Servers, approved};
use super::produce::{AbandonPolicy, produce};
use super::rounds::{Counts, Rounds};
use super::store::{SharedItem, StoredResponse};
use crate::answer::{AnswerMeta, Prepared};
use crate::caller::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::ids::random_id;
use crate::models::Purpose;
use crate::prepare;
use crate::protocol::responses::item::{InputItem, Item, from_stored};
use crate::protocol::responses::request::ResponseRequest;
use crate::protocol::responses::writer::{EchoedRequest, Writer};
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::stream::{AnswerEvents, Deltas, joined};

/// The time after which an unfinished response is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A response to compute.
pub(crate) struct ResponseRun {
    id: String,
    client: Client,
    request: ResponseRequest,
    /// The body of the request, if there is a journal to write it to.
    body: Option<Value>,
    /// The conversation.
    items: Vec<SharedItem>,
    /// The number of items of the request. They are the last ones.
    input_len: usize,
    /// For a response of the journal: the time of the original request, and the stored response.
    journal_entry: Option<(u64, Arc<StoredResponse>)>,
}

/// A running generation.
pub(crate) struct Started {
    pub(crate) deltas: Deltas,
    /// The metadata of the answer.
    pub(crate) meta: AnswerMeta,
}

/// A running stored response.
pub(crate) struct RunningResponse {
    /// The metadata of the answer.
    pub(crate) meta: AnswerMeta,
    pub(crate) stored: Arc<StoredResponse>,
    /// A reader of the events.
    pub(crate) reader: Reader,
}

impl ResponseRun {
    /// Prepares a request, with the stored part of its conversation.
    pub(crate) fn new(
        state: &AppState,
        request: ResponseRequest,
        body: Option<Value>,
        client: Client,
    ) -> Result<Self, ApiError> {
        let mut items = match &request.previous {
            None => Vec::new(),
            Some(id) => {
                let previous = state.responses.get(id, client);
                previous.map_err(|error| error.with_field("previous_response_id"))?.conversation()
            }
        };
        let before = items.len();
        let id = random_id();
        for (index, given) in request.input.iter().enumerate() {
            items.push(match given {
                InputItem::Item(value, _) => Arc::new(with_id(value, &id, index)),
                InputItem::Reference(id, path) => state.responses.item(id, client).ok_or_else(|| {
                    ApiError::field(
                        path,
                        format!("refers to {id:?}, which is not stored; send the item itself"),
                    )
                })?,
            });
        }
        let input_len = items.len() - before;
        Ok(Self { id: format!("resp_{id}"), client, request, body, items, input_len, journal_entry: None })
    }

    /// Prepares a response of the journal, to be recomputed from its seed.
    fn from_journal(record: Record, stored: Arc<StoredResponse>) -> Result<Self, ApiError> {
        let Record { id, created, seed, profile, request: body, input_len, .. } = record;
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let mut request = ResponseRequest::read(&mut Fields::parse(&bytes)?)?;
        request.spec.options.sampling.seed = Some(seed);
        request.spec.profile = profile.map(Arc::new);
        let (client, items, journal_entry) = (stored.client, stored.items.clone(), Some((created, stored)));
        Ok(Self { id, client, request, body: None, items, input_len, journal_entry })
    }

    /// Starts the first generation. Before it, the calls run that the client has approved.
    async fn start(
        &mut self,
        state: &AppState,
        guard: RequestGuard,
        caller: Option<&Caller>,
    ) -> Result<Started, ApiError> {
        let items = self.items.iter().map(|item| from_stored(item)).collect::<Result<Vec<Item>, _>>();
        let mut items = items.map_err(|error| error.rename_field("previous_response_id", "input"))?;
        let mut servers = None;
        if self.uses_mcp() {
            let caller =
                caller.ok_or_else(|| ApiError::failed("calls of tools are not repeated after a restart"))?;
            caller.check(state)?;
            let (opened, mut events) =
                Box::pin(Servers::open(state, &mut self.request.tools, &items)).await?;
            let calls = approved(&self.request.tools, &items)?;
            if !calls.is_empty() {
                // Calls cannot be undone, so mistakes of the request are found before them.
                chat_request(&self.request, &items)?;
                let model = self.request.spec.model.as_deref();
                let _loaded = state.models.lease_for(Purpose::Generate, model).await?;
                let reader = ResultReader { state, origin: &guard.origin, request: &self.request };
                events.extend(Box::pin(opened.run_approved(state, calls, &mut items, &reader)).await);
            }
            servers = Some((opened, events));
        }
        let request = chat_request(&self.request, &items)?;
        let origin = guard.origin.clone();
        let prepared = Box::pin(prepare::start_chat(state, request, guard)).await;
        let Prepared { choices, mut meta, .. } =
            prepared.map_err(|error| error.rename_field("messages", "input"))?;
        if let Some((created, _)) = self.journal_entry {
            meta.created = created;
        }
        let deltas = match servers {
            None => joined(choices),
            Some((servers, events)) => {
                let mut request = self.request.clone();
                request.spec.options.sampling.seed = Some(meta.seed);
                let state = state.clone();
                let rounds = Rounds { state, origin, request, items, servers, count: Counts::default() };
                let first = choices.into_iter().next();
                let first = first.ok_or_else(|| ApiError::failed("the model returned no answer"))?;
                rounds.deltas(first, events)
            }
        };
        Ok(Started { deltas, meta })
    }

    /// Returns true if the request uses MCP servers. Such a response is not in the journal, since a second computation would repeat its calls.
    fn uses_mcp(&self) -> bool {
        !self.request.tools.mcp.is_empty()
    }

    fn echoed(&self) -> EchoedRequest {
        EchoedRequest {
            id: self.id.clone(),
            echo: self.request.echo.clone(),
            tools: self.request.tools.clone(),
            logprobs: self.request.logprobs,
        }
    }

    /// Computes a response that is not stored. Returns it with the parts of the request that it repeats.
    pub(crate) async fn run_ephemeral(
        mut self,
        state: &AppState,
        guard: RequestGuard,
        caller: &Caller,
    ) -> Result<(Started, EchoedRequest), ApiError> {
        Ok((self.start(state, guard, Some(caller)).await?, self.echoed()))
    }

    /// Computes and stores a response.
    pub(crate) async fn run_stored(
        mut self,
        state: &AppState,
        guard: RequestGuard,
        caller: Option<&Caller>,
    ) -> Result<RunningResponse, ApiError> {
        let Started { deltas, meta } = self.start(state, guard, caller).await?;
        if let Some(request) = self.body.take().filter(|_| !self.uses_mcp()) {
            let record = Record {
                id: self.id.clone(),
                created: meta.created,
                seed: meta.seed,
                client: Some(self.client),
                profile: meta.profile.as_deref().cloned(),
                request,
                items: self.items.iter().map(|item| Value::clone(item)).collect(),
                input_len: self.input_len,
            };
            state.responses.record(record).await?;
        }
        let writer = Writer::new(self.echoed(), meta.clone());
        let policy = self.abandon_policy(state);
        let stored = match self.journal_entry {
            Some((_, stored)) => stored,
            None => StoredResponse::new(self.id, self.client, self.items, self.input_len),
        };
        state.responses.begin(&stored, writer.to_json());
        let events = AnswerEvents::of(deltas, writer, state.config.limits.keep_alive.duration());
        let reader = produce(state, Arc::clone(&stored), events, policy);
        Ok(RunningResponse { meta, stored, reader })
    }

    fn abandon_policy(&self, state: &AppState) -> AbandonPolicy {
        if state.responses.has_journal() && !self.uses_mcp() {
            AbandonPolicy::Never
        } else if self.is_streamed() {
            AbandonPolicy::After(state.config.responses.resume_window.duration())
        } else {
            AbandonPolicy::After(Duration::ZERO)
        }
    }

    /// Returns true if the response is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.request.store
    }

    /// Returns true if the response is streamed.
    pub(crate) fn is_streamed(&self) -> bool {
        self.request.spec.is_streamed
    }
}

/// Restores the responses of the journal. Recomputes the unfinished ones in the background.
pub(crate) async fn resume(state: &AppState) {
    let unfinished = state.responses.restore().await;
    let state = state.clone();
    tokio::spawn(async move {
        let mut unfinished = VecDeque::from(unfinished);
        while let Some((record, stored)) = unfinished.pop_front() {
            if stored.is_deleted() {
                continue;
            }
            let id = record.id.clone();
            match recompute(&state, record.clone(), Arc::clone(&stored)).await {
                Ok(()) => tracing::info!(id, "recomputing a response of the journal"),
                // The queue or the memory is full.
                Err(error) if error.may_be_repeated() => {
                    unfinished.push_back((record, stored));
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => {
                    state.responses.give_up(&stored);
                    let error = error.message();
                    tracing::error!(id, error, "a response of the journal cannot be recomputed");
                }
            }
        }
    });
}

async fn recompute(state: &AppState, record: Record, stored: Arc<StoredResponse>) -> Result<(), ApiError> {
    let guard = RequestGuard::for_stored_response(state, stored.client, &record.id);
    ResponseRun::from_journal(record, stored)?.run_stored(state, guard, None).await.map(drop)
}

/// Returns the item with an id, so that it can be listed.
fn with_id(item: &Value, response: &str, index: usize) -> Value {
    let mut item = item.clone();
    if item["id"].is_null()
        && let Some(object) = item.as_object_mut()
    {
        object.insert("id".into(), format!("item_{response}{index:03}").into());
    }
    item
}
