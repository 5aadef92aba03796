//! Computes responses: from a request, or again from the journal.

use std::sync::Arc;
use std::time::Duration;

use mlx_core::chat::check_calls;
use mlx_core::engine::Client;
use serde_json::{Map, Value, json};
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
use crate::routes::body::Job;
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
    /// When the request came, if not now.
    created: Option<u64>,
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
        Ok(Self { id: format!("resp_{id}"), client, request, body, items, own, created: None })
    }

    /// The same response as one of the journal.
    pub(crate) fn again(record: Record) -> Result<Self, ApiError> {
        let Record { id, created, seed, client, request: body, items, own } = record;
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let mut request = ResponseRequest::read(Fields::parse(&bytes)?)?;
        request.job.options.sampling.seed = Some(seed);
        let items = items.into_iter().map(Arc::new).collect();
        Ok(Self { id, client: Client(client), request, body: Some(body), items, own, created: Some(created) })
    }

    /// Starts the generation; the writer of the answer has yet to be made.
    async fn prepare(&self, state: &AppState, job: Job) -> Result<(Prepared, Asked), ApiError> {
        let items = self.items.iter().map(|item| of_store(item)).collect::<Result<Vec<Item>, _>>();
        let items = items.map_err(|error| error.renamed("previous_response_id", "input"))?;
        let messages = messages(self.request.instructions.as_deref(), &items);
        if messages.is_empty() {
            return Err(ApiError::field("input", "holds no message; give a text or a list of items"));
        }
        check_calls(&messages).map_err(|mistake| {
            ApiError::field("input", mistake.why.replace("message of role tool", "function_call_output"))
        })?;
        let mut spec = self.request.job.clone();
        spec.options.client = self.client;
        let conversation = Conversation {
            messages,
            variables: Map::new(),
            tools: self.request.tools.request.clone(),
            thinking: self.request.thinking,
        };
        let request = ChatRequest {
            job: spec,
            conversation,
            limit_name: "max_output_tokens",
            policy: self.request.policy,
        };
        let prepared = chat::start(state, request, job).await;
        let mut prepared = prepared.map_err(|error| error.renamed("messages", "input"))?;
        prepared.facts.created = self.created.unwrap_or(prepared.facts.created);
        let asked = Asked {
            id: self.id.clone(),
            echo: self.request.echo.clone(),
            tools: self.request.tools.clone(),
            logprobs: self.request.logprobs,
        };
        Ok((prepared, asked))
    }

    /// Computes a response that is not kept.
    pub(crate) async fn passing(self, state: &AppState, job: Job) -> Result<(Prepared, Asked), ApiError> {
        self.prepare(state, job).await
    }

    /// Computes a response that is kept.
    pub(crate) async fn kept(
        self,
        state: &AppState,
        job: Job,
        is_streamed: bool,
    ) -> Result<Running, ApiError> {
        let (Prepared { choices, facts, .. }, asked) = self.prepare(state, job).await?;
        let Self { id, client, body, items, own, created, .. } = self;
        if let (Some(request), None) = (body, created) {
            let items = items.iter().map(|item| Value::clone(item)).collect();
            let record = Record {
                id: id.clone(),
                created: facts.created,
                seed: facts.seed,
                client: client.0,
                request,
                items,
                own,
            };
            write(state, move |journal| journal.begin(&record)).await?;
        }
        let kept = Arc::new(Kept::new(client, items, own, Value::Null));
        let writer = Writer::new(asked, facts.clone(), Some(at_end(state, &id, &kept)));
        kept.set(json!(writer.begun()));
        state.responses.keep(&id, &kept);
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

    /// Fields that were accepted and not used.
    pub(crate) fn ignored(&self) -> &[String] {
        &self.request.ignored
    }
}

/// Keeps the response at its end, and writes it to the journal.
fn at_end(state: &AppState, id: &str, kept: &Arc<Kept>) -> Box<dyn FnOnce(&Response) + Send> {
    let (state, id, kept) = (state.clone(), id.to_owned(), Arc::clone(kept));
    Box::new(move |response| {
        let response = json!(response);
        kept.set(response.clone());
        state.responses.keep(&id, &kept);
        tokio::spawn(async move {
            let written = write(&state, move |journal| journal.end(&id, &response)).await;
            if let Err(error) = written {
                tracing::error!(error = error.message(), "a response could not be written to the journal");
            }
        });
    })
}

async fn write(
    state: &AppState,
    write: impl FnOnce(&super::journal::Journal) -> std::io::Result<()> + Send + 'static,
) -> Result<(), ApiError> {
    let Some(journal) = state.journal.clone() else { return Ok(()) };
    let written = spawn_blocking(move || write(&journal)).await;
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(ApiError::failed(format!("the journal cannot be written: {error}"))),
        Err(_) => Err(ApiError::failed("writing the journal was interrupted")),
    }
}

/// Keeps what the journal holds. Responses that had not ended are computed again in the background.
pub(crate) async fn resume(state: &AppState) {
    let Some(journal) = state.journal.clone() else { return };
    let Ok(found) = spawn_blocking(move || journal.open()).await else { return };
    for (record, response) in found.ended {
        keep(state, &record, response);
    }
    for record in &found.begun {
        let shown = json!({"id": record.id, "object": "response", "created_at": record.created, "status": "in_progress", "output": []});
        keep(state, record, shown);
    }
    let state = state.clone();
    tokio::spawn(async move {
        for record in found.begun {
            let id = record.id.clone();
            match again(&state, record).await {
                Ok(()) => tracing::info!(id, "a response of the journal is computed again"),
                Err(error) => {
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

fn keep(state: &AppState, record: &Record, response: Value) {
    let items = record.items.iter().cloned().map(Arc::new).collect();
    let kept = Arc::new(Kept::new(Client(record.client), items, record.own, response));
    state.responses.keep(&record.id, &kept);
}

async fn again(state: &AppState, record: Record) -> Result<(), ApiError> {
    let launch = Launch::again(record)?;
    let job = Job::of_server(state)?;
    launch.kept(state, job, true).await.map(drop)
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
