//! Serves one connection with hyper's HTTP/1, with time limits for clients that send or read nothing. Generic over the stream, so that TLS needs
//! no change here. Invariant: dropping a connection's future cancels its requests.
use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use mlx_core::engine::Client;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;
use tower::ServiceExt;

use crate::error::ApiError;

/// The time that a client may keep sending after the last response. An immediate close could destroy a response in transit.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limits of rejected connections.
const REJECTION_LIMITS: TimeLimits =
    TimeLimits { header: Duration::from_secs(1), write: Duration::from_secs(1) };

/// The time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    /// The limit for the head of a request, and for an idle connection.
    pub(crate) header: Duration,
    /// The limit for a client that reads nothing of its response.
    pub(crate) write: Duration,
}

/// Serves the requests of a client until it disconnects, exceeds a time limit, or the server drains.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite,
    app: Router,
    client: Client,
    limits: TimeLimits,
    draining: impl Future<Output = ()>,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client);
        app.clone().oneshot(request)
    });
    serve_stream(&mut http1::Builder::new(), stream, service, limits, draining).await;
}

/// Rejects a connection because there are too many.
pub(crate) async fn reject(stream: impl AsyncRead + AsyncWrite) {
    let service = service_fn(|_| async {
        Ok::<Response<Body>, Infallible>(ApiError::too_many_connections().into_response())
    });
    serve_stream(http1::Builder::new().keep_alive(false), stream, service, REJECTION_LIMITS, pending()).await;
}

async fn serve_stream<S>(
    http: &mut http1::Builder,
    stream: impl AsyncRead + AsyncWrite,
    service: S,
    limits: TimeLimits,
    draining: impl Future<Output = ()>,
) where
    S: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits.write));
    let mut stream = pin!(stream);
    let outcome = {
        let http = http.timer(TokioTimer::new()).header_read_timeout(limits.header);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream.as_mut()), service));
        tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = draining => {
                // The request in progress may finish.
                connection.as_mut().graceful_shutdown();
                connection.await.ok();
                return;
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
    stream.shutdown().await.ok();
    timeout(LINGER_TIMEOUT, read_to_end(stream)).await.ok();
}

/// Reads and discards all bytes until the client closes its side.
async fn read_to_end(mut stream: impl AsyncRead + Unpin) {
    let mut block = [0; 4096];
    while let Ok(1..) = stream.read(&mut block).await {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::stream;
    use tokio::io::DuplexStream;
    use tokio::sync::oneshot;

    use super::*;

    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_mins(1);

    /// Serves `app` with these limits to a client that has sent `text`. Returns the client's side of the stream.
    async fn client(app: Router, limits: TimeLimits, text: &str) -> DuplexStream {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        tokio::spawn(serve(server, app, Client::default(), limits, pending()));
        client.write_all(text.as_bytes()).await.expect("it is sent");
        client
    }

    /// Returns what arrives until the server closes the connection.
    async fn rest(mut client: DuplexStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("text");
        text
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { timeout(Duration::from_secs(20), test).await.expect("it ends") });
    }

    #[test]
    fn a_client_that_sends_no_complete_head_is_disconnected() {
        run(async {
            let limits = TimeLimits { header: SHORT, write: LONG };
            for text in ["", "GET / HTTP/1.1\r\nHost: a"] {
                let text = rest(client(Router::new(), limits, text).await).await;
                assert_eq!(text, "");
            }
            let idle = client(Router::new(), limits, REQUEST).await;
            assert!(rest(idle).await.starts_with("HTTP/1.1 404"), "a request is answered first");
        });
    }

    /// Returns a guard, and a receiver that fails once all clones of the guard are dropped.
    fn guard() -> (Arc<oneshot::Sender<()>>, oneshot::Receiver<()>) {
        let (sender, dropped) = oneshot::channel();
        (Arc::new(sender), dropped)
    }

    #[test]
    fn a_client_that_does_not_read_is_disconnected() {
        run(async {
            let (guard, dropped) = guard();
            let endless = async move || {
                let block = move || {
                    let _held = &guard;
                    Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1000]))
                };
                Body::from_stream(stream::repeat_with(block))
            };
            let limits = TimeLimits { header: LONG, write: SHORT };
            let client = client(Router::new().route("/", get(endless)), limits, REQUEST).await;
            dropped.await.expect_err("the body is dropped");
            drop(client);
        });
    }

    #[test]
    fn a_request_ends_when_its_client_leaves() {
        run(async {
            let (guard, dropped) = guard();
            let endless = async move || {
                let _held = guard;
                pending::<()>().await;
            };
            let limits = TimeLimits { header: LONG, write: LONG };
            drop(client(Router::new().route("/", get(endless)), limits, REQUEST).await);
            dropped.await.expect_err("the request is dropped");
        });
    }
}
