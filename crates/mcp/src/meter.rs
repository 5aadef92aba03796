//! A limit on the bytes that a server sends during one request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use tokio::io::{AsyncRead, ReadBuf};

/// The bytes that a server may send during one request.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// The bytes that a server may still send. Clones share the number.
#[derive(Clone)]
pub(crate) struct Meter(Arc<AtomicUsize>);

impl Meter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(MAX_BYTES)))
    }

    /// Begins a request: the server may send the maximum again.
    pub(crate) fn reset(&self) {
        self.0.store(MAX_BYTES, Ordering::Relaxed);
    }

    /// Returns true if the server sent the maximum or more.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn count(&self, bytes: usize) {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }
}

/// The output of a server, which ends at the maximum of a meter.
pub(crate) struct Metered<R> {
    pub(crate) inner: R,
    pub(crate) meter: Meter,
}

/// The bytes of a process.
impl<R: AsyncRead + Unpin> AsyncRead for Metered<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.meter.is_exceeded() {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.meter.count(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

/// The messages of a server at a URL. Its errors do not contain the URL, which may contain a key.
impl<T> Transport<RoleClient> for Metered<T>
where
    T: Transport<RoleClient, Error = StreamableHttpError<reqwest::Error>>,
{
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let sent = self.inner.send(message);
        async move {
            sent.await.map_err(|error| match error {
                StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
                other => other,
            })
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.inner.receive().await?;
        self.meter.count(serde_json::to_vec(&message).map_or(0, |json| json.len()));
        (!self.meter.is_exceeded()).then_some(message)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
