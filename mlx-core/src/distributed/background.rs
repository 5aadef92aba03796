//! A connection that a thread reads all the time, so that a loss is noticed while this process computes.

use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::connection::{Connection, Outcome, Writer, write_message};
use super::message::Message;

/// A function that is called in another thread when a connection is lost, with the reason.
pub type OnLoss = Arc<dyn Fn(&str) + Send + Sync>;

/// The time between two looks of the thread at a quiet connection. Heartbeats wake it anyway.
const LOOK: Duration = Duration::from_mins(1);

/// A message with its payload, or the reason of the loss.
type Received<T> = Outcome<(T, Vec<u8>)>;

/// A connection whose messages of type `T` a thread receives. Dropping it closes the socket.
pub(super) struct Background<T> {
    messages: Mutex<Receiver<Received<T>>>,
    writer: Arc<Mutex<Writer>>,
    stream: TcpStream,
    is_closing: Arc<AtomicBool>,
    kind: PhantomData<T>,
}

impl<T: Message> Background<T> {
    /// Receives the messages of a connection in a thread from now on.
    pub(super) fn new(connection: Connection, on_loss: Option<OnLoss>) -> Outcome<Self> {
        let (writer, stream) = (connection.writer(), connection.stream()?);
        let (sender, messages) = channel();
        let is_closing = Arc::new(AtomicBool::new(false));
        let closing = Arc::clone(&is_closing);
        let run = move || {
            let Err(reason) = receive_all(connection, &sender) else { return };
            // The order matters to a reader that has just begun to care for the loss.
            sender.send(Err(reason.clone())).ok();
            if let Some(on_loss) = on_loss.filter(|_| !closing.load(Ordering::Acquire)) {
                on_loss(&reason);
            }
        };
        std::thread::Builder::new().name("receive".into()).spawn(run).map_err(|error| error.to_string())?;
        Ok(Self { messages: Mutex::new(messages), writer, stream, is_closing, kind: PhantomData })
    }

    /// Sends a message and its payload.
    pub(super) fn send(&self, message: &impl Serialize, payload: &[u8]) -> Outcome<()> {
        write_message(&self.writer, message, payload)
    }

    /// Returns the write end.
    pub(super) fn writer(&self) -> Arc<Mutex<Writer>> {
        Arc::clone(&self.writer)
    }

    /// Returns the next message, or `None` at the deadline.
    pub(super) fn receive(&self, until: Instant) -> Outcome<Option<(T, Vec<u8>)>> {
        let messages = self.messages.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(received) => received.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("closed the connection".into()),
        }
    }

    /// Returns the next message, or an error if none arrives in time.
    pub(super) fn expect(&self, within: Duration) -> Received<T> {
        let found = self.receive(Instant::now() + within)?;
        found.ok_or_else(|| format!("did not answer within {:.0} s", within.as_secs_f64()))
    }

    /// Checks that an idle peer is still connected.
    pub(super) fn look(&self) -> Outcome<()> {
        match self.receive(Instant::now())? {
            None => Ok(()),
            Some(_) => Err("sent an unexpected message".into()),
        }
    }

    /// Returns this side's address.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.stream.shutdown(Shutdown::Both).ok();
    }
}

/// Receives messages until the connection is lost. Returns the reason, or `Ok` if nobody receives them any more.
fn receive_all<T: Message>(mut connection: Connection, to: &Sender<Received<T>>) -> Outcome<()> {
    let mut refusal = None;
    loop {
        match connection.receive::<T>(Instant::now() + LOOK) {
            Ok(None) => {}
            Ok(Some(message)) => {
                refusal = message.0.refusal().map(str::to_owned);
                if to.send(Ok(message)).is_err() {
                    return Ok(());
                }
            }
            Err(reason) => return Err(refusal.unwrap_or(reason)),
        }
    }
}
