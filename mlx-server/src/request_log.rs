//! What happens around every request: an id, a line in the log, a count, and a net for panics. Invariant: nothing of
//! what a client wrote reaches the log but the id and `user`.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::state::AppState;

/// The header with the id of a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// The header that says how far an answer can be repeated.
pub(crate) const EXACTNESS: &str = "x-exactness";
/// The header with the seed of an answer.
pub(crate) const SEED: &str = "x-seed";
/// The header that says how many messages the model did not see.
pub(crate) const DROPPED: &str = "x-dropped-messages";

/// The headers that the pages of listed origins may read.
pub(crate) const HEADERS: [&str; 5] = [REQUEST_ID, EXACTNESS, SEED, DROPPED, "retry-after"];

/// A place where an endpoint leaves the `user` of its request for the log.
#[derive(Clone, Default)]
pub(crate) struct LogUser(Arc<Mutex<Option<String>>>);

impl LogUser {
    /// The place of this request.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Leaves the user there.
    pub(crate) fn note(&self, user: Option<&str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = user.map(str::to_owned);
    }

    fn read(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Gives a request its id, and logs and counts its response.
pub(crate) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let method = request.method().clone();
    // The pattern, not the path: a path may say anything, and there are endlessly many.
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let user = LogUser::default();
    request.extensions_mut().insert(user.clone());
    let mut response = next.run(request).await;
    let (status, time) = (response.status().as_u16(), begin.elapsed());
    state.metrics.responded(&route, status, time);
    let milliseconds = time.as_secs_f64() * 1e3;
    let (id_text, user) = (id.to_str().unwrap_or_default(), user.read());
    tracing::info!(id = id_text, %method, route, status, milliseconds, user, "request");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A panic of an endpoint is an error of that request alone.
#[expect(clippy::needless_pass_by_value, reason = "the layer gives it by value")]
pub(crate) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "an endpoint panicked");
    ApiError::failed("this is a fault of the server; its log says more").into_response()
}

/// An id that the client chose, if it can stand in a header and a log.
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
