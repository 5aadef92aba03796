//! Computes responses: from a request, or again from the journal.

use std::sync::Arc;
use std::time::Duration;

use chat_format::check_calls;
use mlx_core::engine::Client;
use mlx_json::{Map, Value};
use serde_json::json;
use tokio::task::spawn_blocking;

use super::events::Reader;
use super::follow::{Unread, follow};
use super::journal::Record;
use super::store::{Kept, SharedItem};
use crate::answer::{Facts, Prepared};
use crate::chat_request::{ChatRequest, Conversation};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::ids::random_id;
use crate::protocol::responses::conversation::messages;
use crate::protocol::responses::item::{Given, Item, of_store};
use crate::protocol::responses::object::Response;
use crate::protocol::responses::request::ResponseRequest;
use crate::protocol::responses::writer::{Asked, Writer};
use crate::request_guard::RequestGuard;
use crate::routes::chat;
use crate::state::AppState;
use crate::stream::Feed;

/// A response that is about to be computed.
pub(crate) struct Launch {
    /// Its id.
    pub(crate) id: String,
    /// Who asked.
    client: Client,
    /// The request, and its body if there is a journal.
    request: ResponseRequest,
    body: Option<Value>,
    /// The conversation, and how many items of it came with the request.
    items: Vec<SharedItem>,
    own: usize,
    /// For a response of the journal: the time of its request, and its entry of the store.
    again: Option<(u64, Arc<Kept>)>,
}

/// A response that is being computed and kept.
pub(crate) struct Running {
    /// What is known of it.
    pub(crate) facts: Facts,
    /// The response.
    pub(crate) kept: Arc<Kept>,
    /// Reads its events.
    pub(crate) reader: Reader,
}

impl Launch {
    /// A request with what the store holds of its conversation.
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
                previous.map_err(|error| error.at("previous_response_id"))?.conversation()
            }
        };
        let before = items.len();
        let id = random_id();
        for (index, given) in request.input.iter().enumerate() {
            items.push(match given {
                Given::Item(value, _) => Arc::new(with_id(value, &id, index)),
                Given::Reference(id, place) => state.responses.item(id, client).ok_or_else(|| {
                    ApiError::field(
                        place,
                        format!("refers to {id:?}, which is not stored; send the item itself"),
                    )
                })?,
            });
        }
        let own = items.len() - before;
        Ok(Self { id: format!("resp_{id}"), client, request, body, items, own, again: None })
    }

    /// A response of the journal, computed again from its seed.
    pub(crate) fn again(record: Record, kept: Arc<Kept>) -> Result<Self, ApiError> {
        let Record { id, created, seed, request: body, own, .. } = record;
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let mut request = ResponseRequest::read(&mut Fields::parse(&bytes)?)?;
        request.job.options.sampling.seed = Some(seed);
        let (client, items, again) = (kept.client, kept.items.clone(), Some((created, kept)));
        Ok(Self { id, client, request, body: Some(body), items, own, again })
    }

    /// Starts the generation; the writer of the answer has yet to be made.
    async fn prepare(&self, state: &AppState, guard: RequestGuard) -> Result<(Prepared, Asked), ApiError> {
        let items = self.items.iter().map(|item| of_store(item)).collect::<Result<Vec<Item>, _>>();
        let items = items.map_err(|error| error.renamed("previous_response_id", "input"))?;
        let messages = messages(self.request.instructions.as_deref(), &items);
        if messages.is_empty() {
            return Err(ApiError::field("input", "holds no message; give a text or a list of items"));
        }
        check_calls(&messages).map_err(|mistake| {
            ApiError::field("input", mistake.why.replace("message of role tool", "function_call_output"))
        })?;
        let conversation = Conversation {
            messages,
            variables: Map::new(),
            tools: self.request.tools.request.clone(),
            thinking: self.request.thinking,
        };
        let request = ChatRequest {
            job: self.request.job.clone(),
            conversation,
            limit_name: "max_output_tokens",
            policy: self.request.policy,
        };
        let prepared = chat::start(state, request, guard).await;
        let mut prepared = prepared.map_err(|error| error.renamed("messages", "input"))?;
        if let Some((created, _)) = self.again {
            prepared.facts.created = created;
        }
        let asked = Asked {
            id: self.id.clone(),
            echo: self.request.echo.clone(),
            tools: self.request.tools.clone(),
            logprobs: self.request.logprobs,
        };
        Ok((prepared, asked))
    }

    /// Computes a response that is not kept.
    pub(crate) async fn passing(
        self,
        state: &AppState,
        guard: RequestGuard,
    ) -> Result<(Prepared, Asked), ApiError> {
        self.prepare(state, guard).await
    }

    /// Computes a response that is kept.
    pub(crate) async fn kept(
        self,
        state: &AppState,
        guard: RequestGuard,
        is_streamed: bool,
    ) -> Result<Running, ApiError> {
        let (Prepared { choices, facts, .. }, asked) = self.prepare(state, guard).await?;
        let Self { id, client, body, items, own, again, .. } = self;
        if let (Some(request), None) = (body, &again) {
            let items = items.iter().map(|item| Value::clone(item)).collect();
            let record = Record {
                id: id.clone(),
                created: facts.created,
                seed: facts.seed,
                client: Some(client),
                request,
                items,
                own,
            };
            write(state, move |journal| journal.begin(&record)).await?;
        }
        let kept = match again {
            Some((_, kept)) => kept,
            None => Arc::new(Kept::new(client, items, own, Value::Null)),
        };
        let writer = Writer::new(asked, facts.clone(), Some(at_end(state, &id, &kept)));
        kept.set(shown(writer.begun()));
        state.responses.begin(&id, &kept);
        let feed = Feed::new(choices, writer, state.config.limits.keep_alive.duration());
        let unread = match (&state.journal, is_streamed) {
            (Some(_), _) => Unread::ToItsEnd,
            (None, true) => Unread::For(state.config.responses.resume_window.duration()),
            (None, false) => Unread::For(Duration::ZERO),
        };
        let (events, reader) = follow(feed, unread, kept.cancelled.clone());
        kept.set_events(events);
        Ok(Running { facts, kept, reader })
    }

    /// Whether the response is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.request.store
    }

    /// Whether it is streamed.
    pub(crate) fn is_streamed(&self) -> bool {
        self.request.job.is_streamed
    }
}

/// Keeps the response at its end, and writes it to the journal.
fn at_end(state: &AppState, id: &str, kept: &Arc<Kept>) -> Box<dyn FnOnce(&Response) + Send> {
    let (state, id, kept) = (state.clone(), id.to_owned(), Arc::clone(kept));
    Box::new(move |response| {
        let response = shown(response);
        kept.set(response.clone());
        state.responses.end(&id, &kept);
        tokio::spawn(async move {
            // A failure is logged. The response stays in memory, and the server computes it again after a restart.
            write(&state, move |journal| journal.end(&id, &response)).await.ok();
        });
    })
}

/// Returns a response as JSON.
fn shown(response: &Response) -> Value {
    // Every response has a form in JSON.
    mlx_json::to_value(response).unwrap_or_default()
}

async fn write(
    state: &AppState,
    write: impl FnOnce(&super::journal::Journal) -> mlx_core::Result<()> + Send + 'static,
) -> Result<(), ApiError> {
    let Some(journal) = state.journal.clone() else { return Ok(()) };
    let written = spawn_blocking(move || write(&journal)).await;
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            // The error names a path, so the client does not get it.
            tracing::error!(%error, "the journal cannot be written");
            Err(ApiError::failed("the journal cannot be written; the server's log says why"))
        }
        Err(_) => Err(ApiError::failed("writing the journal was interrupted")),
    }
}

/// Stores what the journal holds. Responses that had not ended are computed again in the background.
pub(crate) async fn resume(state: &AppState) {
    let Some(journal) = state.journal.clone() else { return };
    let Ok(found) = spawn_blocking(move || journal.open()).await else { return };
    for (record, response) in found.ended {
        state.responses.end(&record.id, &stored(&record, response));
    }
    let begun = found.begun.into_iter().map(|record| {
        let shown = json!({"id": record.id, "object": "response", "created_at": record.created, "status": "in_progress", "output": []});
        let kept = stored(&record, shown.into());
        state.responses.begin(&record.id, &kept);
        (record, kept)
    });
    let begun: Vec<(Record, Arc<Kept>)> = begun.collect();
    let state = state.clone();
    tokio::spawn(async move {
        for (record, kept) in begun {
            let id = record.id.clone();
            if kept.is_deleted() {
                continue;
            }
            let shared = Arc::clone(&kept);
            match again(&state, record, kept).await {
                Ok(()) => tracing::info!(id, "a response of the journal is computed again"),
                Err(error) => {
                    state.responses.end(&id, &shared);
                    tracing::error!(
                        id,
                        error = error.message(),
                        "a response of the journal cannot be computed"
                    );
                }
            }
        }
    });
}

fn stored(record: &Record, response: Value) -> Arc<Kept> {
    let items = record.items.iter().cloned().map(Arc::new).collect();
    // The journal gives no record without a client.
    Arc::new(Kept::new(record.client.unwrap_or_default(), items, record.own, response))
}

async fn again(state: &AppState, record: Record, kept: Arc<Kept>) -> Result<(), ApiError> {
    let guard = RequestGuard::of_server(state, kept.client, &record.id);
    let launch = Launch::again(record, kept)?;
    launch.kept(state, guard, true).await.map(drop)
}

/// Deletes a response of this client: from memory, from the journal, and its computation if it runs.
pub(crate) async fn delete(state: &AppState, id: &str, client: Client) -> Result<(), ApiError> {
    let kept = state.responses.get(id, client);
    if let Ok(kept) = &kept {
        // Its computation ends even if its file cannot be removed.
        kept.cancelled.cancel();
    }
    let mut in_journal = false;
    if let Some(journal) = state.journal.clone() {
        let own = id.to_owned();
        let removed = spawn_blocking(move || journal.remove(&own, client)).await;
        in_journal = match removed {
            Ok(Ok(in_journal)) => in_journal,
            failed => {
                tracing::error!(id, ?failed, "a response could not be removed from the journal");
                let message = "the response could not be removed from the journal; it was not deleted";
                return Err(ApiError::failed(message));
            }
        };
    }
    match kept {
        Ok(kept) => state.responses.delete(id, &kept),
        // It was evicted from memory.
        Err(error) if !in_journal => return Err(error),
        Err(_) => {}
    }
    Ok(())
}

/// An item with an id, so that it can be listed.
fn with_id(item: &Value, response: &str, index: usize) -> Value {
    let mut item = item.clone();
    if item["id"].is_null()
        && let Some(object) = item.as_object_mut()
    {
        object.insert("id".into(), format!("item_{response}{index:03}").into());
    }
    item
}
