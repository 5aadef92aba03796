//! Middleware around every request: an id, a log line, metrics and a handler for panics. Invariant: of a client's
//! input, only the id, `user` and the names of unused fields reach the log.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::state::AppState;

/// The header with the id of a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// The header with the level of exactness of an answer.
pub(crate) const EXACTNESS: &str = "x-exactness";
/// The header with the seed of an answer.
pub(crate) const SEED: &str = "x-seed";
/// The header with the number of messages dropped by the context policy.
pub(crate) const DROPPED: &str = "x-dropped-messages";
/// The header that says where a prompt left a kept one: `AT/KEPT`, in tokens.
pub(crate) const PREFIX_MISS: &str = "x-prefix-miss";

/// The header with fields that were accepted and not used.
pub(crate) const IGNORED: &str = "x-ignored-fields";

/// The headers that the pages of listed origins may read.
pub(crate) const HEADERS: [&str; 7] =
    [REQUEST_ID, EXACTNESS, SEED, DROPPED, PREFIX_MISS, IGNORED, "retry-after"];

/// The most bytes of the names of fields that were not used.
const LONGEST_IGNORED: usize = 1000;

/// The longest `user` in the log.
const LONGEST_USER: usize = 128;

/// The id of a request.
#[derive(Clone, Default)]
pub(crate) struct RequestId(Option<HeaderValue>);

impl RequestId {
    /// As text; empty if there is none.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default()
    }
}

/// A slot in which an endpoint stores the `user` of its request for the log.
#[derive(Clone, Default)]
pub(crate) struct LogUser(Arc<Mutex<Option<String>>>);

impl LogUser {
    /// The slot of this request.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Stores the start of the user.
    pub(crate) fn note(&self, user: Option<&str>) {
        let start = |user: &str| user[..user.floor_char_boundary(LONGEST_USER)].to_owned();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = user.map(start);
    }

    fn read(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Names the fields of a request that were accepted and not used, in the log and in its response.
pub(crate) fn name_ignored(mut response: Response, names: &[String]) -> Response {
    if names.is_empty() {
        return response;
    }
    let mut list = names.join(", ");
    list.truncate(list.floor_char_boundary(LONGEST_IGNORED));
    tracing::info!(fields = list, "fields of a request were not used");
    // Clients may give any name to a field.
    let written = list.replace(|letter: char| !(' '..='~').contains(&letter), "?");
    if let Ok(value) = HeaderValue::from_str(&written) {
        response.headers_mut().insert(IGNORED, value);
    }
    response
}

/// Assigns the request id, then logs and counts the response.
pub(crate) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let method = method_name(request.method());
    // The route pattern, not the path: paths are unbounded in number and chosen by the client.
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let user = LogUser::default();
    request.extensions_mut().insert(user.clone());
    request.extensions_mut().insert(RequestId(Some(id.clone())));
    let mut response = next.run(request).await;
    let (status, time) = (response.status().as_u16(), begin.elapsed());
    state.metrics.responded(&route, status, time);
    let milliseconds = (time.as_secs_f64() * 1e6).round() / 1e3;
    let (id_text, user) = (id.to_str().unwrap_or_default(), user.read());
    tracing::info!(id = id_text, method, route, status, milliseconds, user, "request");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The name of a method; clients may invent others, of any length.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [Method; 6] =
        [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE];
    const NAMES: [&str; 6] = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"];
    KNOWN.iter().position(|known| known == method).map_or("other", |index| NAMES[index])
}

/// Turns a panic of an endpoint into an error of its request.
#[expect(clippy::needless_pass_by_value, reason = "the layer passes it by value")]
pub(crate) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "an endpoint panicked");
    ApiError::failed("internal error; see the server's log").into_response()
}

/// The id that the client sent, if it is safe in a header and a log.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(REQUEST_ID)?;
    let text = id.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    ((1..=128).contains(&text.len()) && text.bytes().all(plain)).then(|| id.clone())
}

fn new_id() -> HeaderValue {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    HeaderValue::from_str(&format!("req-{time:x}-{count:x}")).expect("letters, digits and dashes")
}
