//! A client's connection. A client that stops reading is cut off, or it would keep its generation alive for ever; and one that leaves while
//! its request is being answered is noticed, whatever it has sent behind the request.

use std::future::{Future, poll_fn};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// What is kept of the requests that a client sends before it has its answer. Of more, nothing is kept: it is read only to see the client leave,
/// and the connection ends with the answer.
const MOST_AHEAD: usize = 64 << 10;
/// How long a client may go on sending when its last response is complete. To close at once could destroy the response on its way.
const LINGER: Duration = Duration::from_secs(1);

/// A connection whose writes fail when the client has read nothing for a while.
pub(crate) struct Connection {
    input: Input,
    output: OwnedWriteHalf,
    write_timeout: Duration,
    /// Runs while a write is blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

/// What a client sends; clones share it.
#[derive(Clone)]
pub(crate) struct Input(Arc<Mutex<ReadAhead>>);

struct ReadAhead {
    socket: OwnedReadHalf,
    /// What was read before the server asked for it.
    ahead: Vec<u8>,
    /// Whether more was read than is kept.
    is_cut: bool,
}

impl Connection {
    /// Fails a write that is blocked for longer than `write_timeout`. Also returns the input, to be watched.
    pub(crate) fn new(stream: TcpStream, write_timeout: Duration) -> (Self, Input) {
        let (socket, output) = stream.into_split();
        let input = Input(Arc::new(Mutex::new(ReadAhead { socket, ahead: Vec::new(), is_cut: false })));
        (Self { input: input.clone(), output, write_timeout, timer: None }, input)
    }

    /// Returns the outcome of a write, or an error if it has been blocked for too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, outcome: Poll<Result<T>>) -> Poll<Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let timeout = self.write_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match timer.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                // A later write gets the full timeout again.
                timer.as_mut().reset(Instant::now() + timeout);
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read the response")))
            }
        }
    }
}

impl Input {
    fn lock(&self) -> MutexGuard<'_, ReadAhead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client is gone, looking only while `is_answered`: at other times the connection itself reads. Must be polled by the task
    /// of the connection, after it.
    pub(crate) async fn closed(&self, is_answered: impl Fn() -> bool) {
        poll_fn(|context| if is_answered() { self.lock().poll_closed(context) } else { Poll::Pending }).await;
    }

    /// Reads what is left until the client closes the connection, or for a while.
    pub(crate) async fn linger(&self) {
        let end = poll_fn(|context| {
            let mut input = self.lock();
            input.is_cut = true;
            input.poll_closed(context)
        });
        timeout(LINGER, end).await.ok();
    }
}

impl ReadAhead {
    /// Reads a block ahead and returns its length.
    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<usize>> {
        let mut block = [0; 4096];
        let mut buffer = ReadBuf::new(&mut block);
        let outcome = Pin::new(&mut self.socket).poll_read(context, &mut buffer);
        self.is_cut |= self.ahead.len() + buffer.filled().len() > MOST_AHEAD;
        if !self.is_cut {
            self.ahead.extend(buffer.filled());
        }
        outcome.map_ok(|()| buffer.filled().len())
    }

    /// Ready once the client has closed the connection.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(outcome) = self.poll_ahead(context) {
            if !matches!(outcome, Ok(1..)) {
                return Poll::Ready(());
            }
            // The connection may want it after all.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let mut input = self.input.lock();
        if input.ahead.is_empty() {
            // Nothing can be understood behind a gap.
            let end = Poll::Ready(Ok(()));
            return if input.is_cut { end } else { Pin::new(&mut input.socket).poll_read(context, buffer) };
        }
        let length = input.ahead.len().min(buffer.remaining());
        buffer.put_slice(&input.ahead[..length]);
        input.ahead.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.output).poll_write(context, bytes);
        self.watch(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.output).poll_write_vectored(context, slices);
        self.watch(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.output.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.output).poll_flush(context);
        self.watch(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_write_to_a_client_that_does_not_read_times_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let silent =
                TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connects");
            let (stream, _) = listener.accept().await.expect("accepts");
            let (mut patient, _) = Connection::new(stream, Duration::from_millis(100));
            let block = vec![0; 1 << 20];
            let error = loop {
                if let Err(error) =
                    poll_fn(|context| Pin::new(&mut patient).poll_write(context, &block)).await
                {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            drop(silent);
        });
    }
}
