//! The request in progress on a connection: whether it is still being read, and whether it is being answered. Adds the client to each request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use mlx_core::engine::Client;
use tower::ServiceExt;

/// The state of a connection. The bodies of its request and of the response hold a token each.
#[derive(Default)]
pub(crate) struct Exchange {
    reading: Arc<()>,
    answering: Arc<()>,
}

impl Exchange {
    /// Whether a complete request is being answered.
    pub(crate) fn is_answered(&self) -> bool {
        Arc::strong_count(&self.reading) == 1 && Arc::strong_count(&self.answering) > 1
    }

    /// Answers a request of this client.
    pub(crate) async fn answer(
        &self,
        app: Router,
        request: Request<Incoming>,
        client: Client,
    ) -> Result<Response<Body>, Infallible> {
        let (reading, answering) = (Arc::clone(&self.reading), Arc::clone(&self.answering));
        let mut request = request.map(|body| Held::of(Body::new(body), reading));
        request.extensions_mut().insert(client);
        app.oneshot(request).await.map(|response| response.map(|body| Held::of(body, answering)))
    }
}

/// A body that holds a token until it is dropped.
struct Held {
    body: Body,
    _token: Arc<()>,
}

impl Held {
    fn of(body: Body, token: Arc<()>) -> Body {
        Body::new(Self { body, _token: token })
    }
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
