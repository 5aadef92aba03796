//! Middleware for all requests: request ids, log lines, metrics and a panic handler. Invariant: of a client's input, only the id,
//! `user` and the names of unused fields reach the JSON log. A log for humans also has the path, without its query, and the text of an error.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use crate::error::ApiError;
use crate::human_log;
use crate::state::AppState;
use crate::traces::{Parent, RequestSpan};

/// The header with the id of a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// The header with the id of a request in Anthropic's API.
pub(crate) const ANTHROPIC_REQUEST_ID: &str = "request-id";
/// The header with the exactness level of an answer.
pub(crate) const EXACTNESS: &str = "x-exactness";
/// The header with the seed of an answer.
pub(crate) const SEED: &str = "x-seed";
/// The header with the number of messages dropped by the context policy.
pub(crate) const DROPPED: &str = "x-dropped-messages";
/// The header with the number of texts that were cut.
pub(crate) const TRUNCATED: &str = "x-truncated";
/// The header for a prefix cache miss: `AT/CACHED`, the position of the divergence and the length of the cached prompt, in tokens.
pub(crate) const PREFIX_MISS: &str = "x-prefix-miss";

/// The header with the names of unused fields.
pub(crate) const IGNORED: &str = "x-ignored-fields";

/// The response headers that pages of allowed origins may read.
pub(crate) const HEADERS: [&str; 9] = [
    REQUEST_ID,
    ANTHROPIC_REQUEST_ID,
    EXACTNESS,
    SEED,
    DROPPED,
    TRUNCATED,
    PREFIX_MISS,
    IGNORED,
    "retry-after",
];

/// The maximum length of the list of unused fields, and of one name in it, in bytes.
const MAX_IGNORED_LEN: usize = 500;
const MAX_NAME_LEN: usize = 100;

/// The maximum length of `user` in the log, in bytes.
const MAX_USER_LEN: usize = 128;

/// The maximum length of a path in the log, in bytes.
const MAX_PATH_LEN: usize = 200;

/// Routes that clients request regularly. On a terminal, such a request is logged only with `-v`, or if it fails.
const POLLED: [&str; 8] =
    ["/health", "/ready", "/metrics", "/v1/models", "/models", "/v1/mcp/tools", "/api/tags", "/api/ps"];

/// The id of a request; empty if the request has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestId {
    text: Arc<str>,
    /// The span of the request, if traces are sent.
    span: Parent,
}

impl RequestId {
    /// Returns the id of a request.
    pub(crate) fn from_request(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Returns an id for work that the server starts itself, such as recomputing a stored response.
    pub(crate) fn from_response_id(id: &str) -> Self {
        Self { text: id.into(), span: Parent::default() }
    }

    /// Returns the id as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the span of the request.
    pub(crate) fn span(&self) -> &Parent {
        &self.span
    }
}

/// Data that an endpoint sets for the log line and the headers of the response.
#[derive(Clone, Default)]
pub(crate) struct RequestNotes(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    /// The `user` of the request.
    user: Option<String>,
    /// The unused fields, as a header value.
    ignored: Option<String>,
}

impl RequestNotes {
    /// Returns the notes of a request.
    pub(crate) fn from_request(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Stores the start of `user`.
    pub(crate) fn set_user(&self, user: Option<&str>) {
        self.lock().user = user.map(|user| start(user, MAX_USER_LEN).to_owned());
    }

    /// Stores the names of unused fields.
    pub(crate) fn add_ignored(&self, names: &[String]) {
        self.lock().ignored = (!names.is_empty()).then(|| header_list(names));
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns field names as one header value. Clients choose the names, so unsafe characters become `?`. Names beyond the maximum length are only
/// counted.
fn header_list(names: &[String]) -> String {
    let plain = |name: &String| {
        let start = &name[..name.floor_char_boundary(MAX_NAME_LEN)];
        start.replace(|ch: char| !('!'..='~').contains(&ch) || ch == ',', "?")
    };
    let mut list = String::new();
    for (index, name) in names.iter().map(plain).enumerate() {
        if list.len() + name.len() > MAX_IGNORED_LEN {
            return list + &format!("and {} more", names.len() - index);
        }
        list += &name;
        if index + 1 < names.len() {
            list += ", ";
        }
    }
    list
}

/// Assigns the request id, then logs and counts the response.
pub(crate) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let id = client_request_id(request.headers()).unwrap_or_else(new_id);
    let method = method_name(request.method());
    // The route pattern, not the path: paths are unbounded in number and chosen by the client.
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let notes = RequestNotes::default();
    request.extensions_mut().insert(notes.clone());
    let text = id.to_str().unwrap_or_default();
    let span = state.traces.as_ref().map(|traces| traces.begin(method, &route, request.headers(), text));
    let parent = span.as_ref().map(RequestSpan::as_parent).unwrap_or_default();
    request.extensions_mut().insert(RequestId { text: text.into(), span: parent });
    let path = human_log::is_active().then(|| start(request.uri().path(), MAX_PATH_LEN).to_owned());
    // An error span, so that warnings have the id with any filter.
    let in_request = tracing::error_span!("request", id = text);
    let mut response = next.run(request).instrument(in_request).await;
    let (status, time) = (response.status().as_u16(), begin.elapsed());
    state.metrics.record_response(&route, status, time);
    let milliseconds = (time.as_secs_f64() * 1e6).round() / 1e3;
    let id_text = id.to_str().unwrap_or_default();
    let Notes { user, ignored } = std::mem::take(&mut *notes.lock());
    let error = response.extensions().get::<ApiError>();
    let code = error.map(ApiError::code);
    if let Some(path) = path {
        let reason = error.map(ApiError::message);
        if status < 400 && POLLED.contains(&route.as_str()) {
            tracing::debug!(method, path, status, milliseconds, "request");
        } else {
            tracing::info!(method, path, status, milliseconds, user, ignored, reason, "request");
        }
    } else {
        tracing::info!(id = id_text, method, route, status, milliseconds, code, user, ignored, "request");
    }
    let headers = response.headers_mut();
    if let Some(Ok(list)) = ignored.map(HeaderValue::try_from) {
        headers.insert(IGNORED, list);
    }
    headers.insert(REQUEST_ID, id);
    match span {
        Some(span) => span.end_with(response),
        None => response,
    }
}

/// Returns the start of a text, of at most this many bytes.
fn start(text: &str, max_len: usize) -> &str {
    &text[..text.floor_char_boundary(max_len)]
}

/// Returns the name of a known method. Clients may send other methods, of any length.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [Method; 6] =
        [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE];
    const NAMES: [&str; 6] = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"];
    KNOWN.iter().position(|known| known == method).map_or("other", |index| NAMES[index])
}

/// Turns a panic of an endpoint into an error of its request.
#[expect(clippy::needless_pass_by_value, reason = "the layer passes it by value")]
pub(crate) fn panic_response(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "an endpoint panicked");
    ApiError::failed("internal error; see the server's log").into_response()
}

/// Returns the id that the client sent, if it is safe in a header and a log.
fn client_request_id(headers: &HeaderMap) -> Option<HeaderValue> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_names_make_one_short_header() {
        let list = |names: &[&str]| header_list(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(list(&["a", "options.b"]), "a, options.b");
        assert_eq!(list(&["a\r\nset-cookie: x", "ü, b"]), "a??set-cookie:?x, ???b");
        let long = "x".repeat(10_000);
        let many = vec![long.as_str(); 1000];
        let named = list(&many);
        assert!(named.len() < 600 && named.ends_with("and 996 more"), "{named}");
        assert!(HeaderValue::try_from(named).is_ok());
    }
}
