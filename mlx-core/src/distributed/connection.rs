//! A TCP connection between two machines. Both send heartbeats; a peer that sends nothing for the timeout is treated as lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, Decoded};

/// The time limit for a reply, even while heartbeats arrive, and for sending one message.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_mins(10);

/// Heartbeats sent per timeout.
const HEARTBEATS: u32 = 5;

/// Bytes per read.
const READ: usize = 256 << 10;

/// The largest capacity of the read buffer between messages.
const MAX_IDLE_CAPACITY: usize = 4 * READ;

/// A result. Its error is a predicate about the peer, such as "closed the connection".
pub(super) type Outcome<T> = Result<T, String>;

/// A connection to a peer. Dropping it closes the socket.
pub(super) struct Connection {
    stream: TcpStream,
    writer: Arc<Mutex<Writer>>,
    /// Received bytes that are not a whole message yet.
    buffer: Vec<u8>,
    /// The maximum length of a received message.
    limit: usize,
    /// The time of the last message, or a later one before which none is expected.
    last_received: Instant,
    timeout: Duration,
    /// Dropping it stops the heartbeat thread.
    heartbeats: Option<Sender<()>>,
    /// True if another process has the socket from now on.
    is_handed_over: bool,
}

/// The write end of a connection. Writes one message at a time.
pub(super) struct Writer {
    stream: TcpStream,
    /// The time limit for a write without progress.
    stall_timeout: Duration,
    /// The time limit for a whole message.
    message_timeout: Duration,
}

impl Connection {
    /// Wraps a new connection. Until it is [trusted](Self::trust), the peer may only send short messages. It counts as lost if it sends
    /// nothing, or does not take a message, within this timeout.
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Outcome<Self> {
        // macOS refuses to set options of a closed connection. Here and below, the next read or write reports the end.
        stream.set_nodelay(true).ok();
        let writer = stream.try_clone().map_err(|error| error.to_string())?;
        let writer =
            Arc::new(Mutex::new(Writer { stream: writer, stall_timeout: timeout, message_timeout: timeout }));
        let (last_received, limit) = (Instant::now(), frame::MAX_HANDSHAKE);
        Ok(Self {
            stream,
            writer,
            buffer: Vec::new(),
            limit,
            last_received,
            timeout,
            heartbeats: None,
            is_handed_over: false,
        })
    }

    /// Trusts the peer after it has proved that it has the key. From now on it may send messages of any length, and this side sends
    /// heartbeats, often enough for this timeout.
    pub(super) fn trust(&mut self, timeout: Duration) -> Outcome<()> {
        self.timeout = timeout;
        self.limit = frame::MAX_MESSAGE;
        {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            (writer.stall_timeout, writer.message_timeout) = (timeout, REPLY_TIMEOUT);
        }
        let (heartbeats, end) = channel::<()>();
        let writer = Arc::clone(&self.writer);
        let run = move || {
            while end.recv_timeout(timeout / HEARTBEATS) == Err(RecvTimeoutError::Timeout) {
                if write(&writer, &frame::heartbeat()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("heartbeats".into())
            .spawn(run)
            .map_err(|error| error.to_string())?;
        self.heartbeats = Some(heartbeats);
        Ok(())
    }

    /// Accepts that a peer sends nothing for this long, because it starts a process.
    pub(super) fn wait_for_start(&mut self, time: Duration) {
        self.last_received = Instant::now() + time;
    }

    /// Returns the socket, for another process.
    ///
    /// # Errors
    /// If the peer has sent more than was received.
    pub(super) fn into_stream(mut self) -> Outcome<TcpStream> {
        if !self.buffer.is_empty() {
            return Err("sent a message too early".into());
        }
        let stream = self.stream.try_clone().map_err(|error| error.to_string())?;
        self.is_handed_over = true;
        Ok(stream)
    }

    /// Sends a message and its payload.
    pub(super) fn send(&self, message: &impl Serialize, payload: &[u8]) -> Outcome<()> {
        write_message(&self.writer, message, payload)
    }

    /// Returns the write end.
    pub(super) fn writer(&self) -> Arc<Mutex<Writer>> {
        Arc::clone(&self.writer)
    }

    /// Returns another handle of the socket.
    pub(super) fn stream(&self) -> Outcome<TcpStream> {
        self.stream.try_clone().map_err(|error| error.to_string())
    }

    /// Returns the next message, or `None` at the deadline. Messages that have already arrived are read even after the deadline.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, until: Instant) -> Outcome<Option<(T, Vec<u8>)>> {
        let mut has_read = false;
        loop {
            match frame::decode(&self.buffer, self.limit)? {
                Decoded::Message(message, payload, length) => {
                    self.buffer.drain(..length);
                    if self.buffer.capacity() > MAX_IDLE_CAPACITY {
                        self.buffer.shrink_to(READ);
                    }
                    return Ok(Some((message, payload)));
                }
                Decoded::Heartbeat(length) => drop(self.buffer.drain(..length)),
                Decoded::Partial => {
                    let now = Instant::now();
                    // Heartbeats and unfinished messages do not extend the deadline.
                    if has_read && now >= until {
                        return Ok(None);
                    }
                    let quiet = self.last_received + self.timeout;
                    let found = self.read(until.min(quiet).saturating_duration_since(now))?;
                    if !found && Instant::now() >= quiet {
                        return Err(format!("was silent for {:.1} s", self.timeout.as_secs_f64()));
                    }
                    has_read = true;
                }
            }
        }
    }

    /// Returns the next message, or an error if none arrives in time.
    pub(super) fn expect<T: DeserializeOwned>(&mut self, within: Duration) -> Outcome<(T, Vec<u8>)> {
        let until = Instant::now() + within;
        self.receive(until)?.ok_or_else(|| format!("did not answer within {:.0} s", within.as_secs_f64()))
    }

    /// Reads available bytes or waits for some; false if the wait timed out.
    fn read(&mut self, wait: Duration) -> Outcome<bool> {
        // A timeout of zero would mean no timeout.
        let wait = wait.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(wait)).ok();
        let before = self.buffer.len();
        self.buffer.resize(before + READ, 0);
        let outcome = self.stream.read(&mut self.buffer[before..]);
        self.buffer.truncate(before + *outcome.as_ref().unwrap_or(&0));
        match outcome {
            Ok(0) => Err("closed the connection".into()),
            Ok(_) => {
                self.last_received = Instant::now();
                Ok(true)
            }
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(format!("could not be read from: {error}")),
        }
    }
}

/// Writes a message and its payload.
pub(super) fn write_message(writer: &Mutex<Writer>, message: &impl Serialize, payload: &[u8]) -> Outcome<()> {
    write(writer, &frame::encode(message, payload)?)
}

/// Writes a whole frame.
fn write(writer: &Mutex<Writer>, frame: &[u8]) -> Outcome<()> {
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    writer.write(frame).inspect_err(|_| {
        // The frame may have been written in part, so the stream is unusable.
        writer.stream.shutdown(Shutdown::Both).ok();
    })
}

impl Writer {
    fn write(&mut self, frame: &[u8]) -> Outcome<()> {
        let failed = |error: std::io::Error| format!("could not be written to: {error}");
        let begun = Instant::now();
        let mut rest = frame;
        while !rest.is_empty() {
            let left = self.message_timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(format!(
                    "did not accept a message within {:.0} s",
                    self.message_timeout.as_secs_f64()
                ));
            }
            self.stream.set_write_timeout(Some(left.min(self.stall_timeout))).ok();
            match self.stream.write(rest) {
                Ok(0) => return Err("closed the connection".into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) && begun.elapsed() < self.message_timeout => {
                    let seconds = self.stall_timeout.as_secs_f64();
                    return Err(format!("accepted no data for {seconds:.1} s"));
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// True if a read or write only timed out or was interrupted.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_handed_over {
            self.stream.shutdown(Shutdown::Both).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(200);

    /// Returns a connection and the peer's socket.
    fn pair(timeout: Duration) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (here, _) = listener.accept().expect("it was connected");
        (Connection::new(here, timeout).expect("a socket"), there)
    }

    fn error_and_time<T>(run: impl FnOnce() -> Outcome<T>) -> (String, Duration) {
        let begun = Instant::now();
        (run().map(drop).expect_err("it fails"), begun.elapsed())
    }

    #[test]
    fn heartbeats_do_not_put_off_the_end_of_the_handshake() {
        let (mut connection, mut there) = pair(MOMENT);
        thread::spawn(move || {
            while there.write_all(&frame::heartbeat()).is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (error, time) = error_and_time(|| connection.expect::<String>(MOMENT));
        assert!(error.contains("did not answer") && time < 10 * MOMENT, "{error} after {time:?}");
    }

    #[test]
    fn bytes_that_drip_do_not_put_it_off_either() {
        let (mut connection, mut there) = pair(MOMENT);
        thread::spawn(move || {
            let frame = frame::encode(&"words", &[0; 1000]).expect("it is short");
            for byte in frame {
                if there.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (error, time) = error_and_time(|| connection.expect::<String>(MOMENT));
        assert!(error.contains("did not answer") && time < 10 * MOMENT, "{error} after {time:?}");
    }

    #[test]
    fn a_long_message_is_refused_before_the_key_was_proved() {
        let (mut connection, mut there) = pair(10 * MOMENT);
        let frame = frame::encode(&"words", &vec![0; 4 << 20]).expect("it may be sent");
        there.write_all(&frame[..100]).expect("it is read");
        let (error, time) = error_and_time(|| connection.expect::<String>(10 * MOMENT));
        assert!(error.contains("too long") && time < 5 * MOMENT, "{error} after {time:?}");
        let (mut connection, mut there) = pair(10 * MOMENT);
        connection.trust(10 * MOMENT).expect("a thread");
        thread::spawn(move || there.write_all(&frame).map(|()| there));
        let (message, payload) = connection.expect::<String>(10 * MOMENT).expect("it has the key");
        assert_eq!((message.as_str(), payload.len()), ("words", 4 << 20));
        // The buffer gives up the memory of a long message.
        assert!(connection.buffer.capacity() <= MAX_IDLE_CAPACITY, "{} bytes", connection.buffer.capacity());
    }

    #[test]
    fn a_message_that_is_taken_by_drops_is_given_up() {
        let (connection, mut there) = pair(MOMENT);
        thread::spawn(move || {
            while there.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (error, time) = error_and_time(|| connection.send(&"words", &vec![0; 32 << 20]));
        assert!(error.contains("did not accept") && time < 25 * MOMENT, "{error} after {time:?}");
    }
}
