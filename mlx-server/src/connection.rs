//! A connection that gives up on a client who takes nothing: without it, an answer that nobody reads would keep its
//! generation for ever.

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A connection whose writes fail when the other side has taken nothing for a while.
pub(crate) struct WriteTimeout {
    stream: TcpStream,
    patience: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// Waits this long for the other side to take something.
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Self {
        Self { stream, patience, timer: None }
    }

    /// Passes on what a write gave, or an error when it has waited too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, outcome: Poll<Result<T>>) -> Poll<Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        match timer.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                // Whoever asks again has to wait again.
                timer.as_mut().reset(Instant::now() + patience);
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client takes nothing")))
            }
        }
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_given_up_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let silent =
                TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connects");
            let (stream, _) = listener.accept().await.expect("accepts");
            let mut patient = WriteTimeout::new(stream, Duration::from_millis(100));
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
