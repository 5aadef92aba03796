//! A connection between two machines. Both say every now and then that they are there; who is silent for too long is given up.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, Decoded};

/// How often a machine says that it is there within the time after which it would be given up.
const BEATS: u32 = 5;

/// Bytes that are read at once.
const READ: usize = 256 << 10;

/// The other side's end of the line is the machine, so an error says what that one did: "closed the connection".
pub(super) type Outcome<T> = Result<T, String>;

/// A connection. It ends with this value.
pub(super) struct Connection {
    stream: TcpStream,
    writer: Arc<Mutex<TcpStream>>,
    /// What was read and is not a whole message yet.
    buffer: Vec<u8>,
    heard: Instant,
    silence: Duration,
    /// Its end stops the thread that says that this side is there.
    beats: Option<Sender<()>>,
}

impl Connection {
    /// Takes a new connection, whose other side is given up after so long without a word.
    pub(super) fn new(stream: TcpStream, silence: Duration) -> Outcome<Self> {
        let set_up = || {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(silence))?;
            stream.try_clone()
        };
        let writer = Arc::new(Mutex::new(set_up().map_err(|error| error.to_string())?));
        Ok(Self { stream, writer, buffer: Vec::new(), heard: Instant::now(), silence, beats: None })
    }

    /// From now on says that this side is there, often enough for so long a silence.
    pub(super) fn beat(&mut self, silence: Duration) -> Outcome<()> {
        self.silence = silence;
        self.stream.set_write_timeout(Some(silence)).map_err(|error| error.to_string())?;
        let (beats, end) = channel::<()>();
        let writer = Arc::clone(&self.writer);
        let run = move || {
            while end.recv_timeout(silence / BEATS) == Err(RecvTimeoutError::Timeout) {
                if write(&writer, &frame::alive()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("beats".into()).spawn(run).map_err(|error| error.to_string())?;
        self.beats = Some(beats);
        Ok(())
    }

    /// Sends a message with numbers behind it.
    pub(super) fn send(&self, message: &impl Serialize, payload: &[u8]) -> Outcome<()> {
        write(&self.writer, &frame::encode(message, payload)?)
    }

    /// The next message, or `None` if there is none at this time.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, until: Instant) -> Outcome<Option<(T, Vec<u8>)>> {
        loop {
            match frame::decode(&self.buffer)? {
                Decoded::Message(message, payload, length) => {
                    self.buffer.drain(..length);
                    return Ok(Some((message, payload)));
                }
                Decoded::Alive(length) => drop(self.buffer.drain(..length)),
                Decoded::Partial => {
                    let (now, quiet) = (Instant::now(), self.heard + self.silence);
                    // What it said may be there, if this side has not listened since.
                    let heard = self.read(until.min(quiet).saturating_duration_since(now))?;
                    if !heard && Instant::now() >= quiet {
                        return Err(format!("was silent for {:.1} s", self.silence.as_secs_f64()));
                    }
                    if !heard && Instant::now() >= until {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The next message; an error if there is none for too long.
    pub(super) fn expect<T: DeserializeOwned>(&mut self, within: Duration) -> Outcome<(T, Vec<u8>)> {
        let until = Instant::now() + within;
        self.receive(until)?.ok_or_else(|| format!("did not answer within {:.0} s", within.as_secs_f64()))
    }

    /// Reads some of what there is, or waits for it; false if there was nothing.
    fn read(&mut self, wait: Duration) -> Outcome<bool> {
        // Zero would be no limit.
        let wait = wait.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(wait)).map_err(|error| error.to_string())?;
        let before = self.buffer.len();
        self.buffer.resize(before + READ, 0);
        let outcome = self.stream.read(&mut self.buffer[before..]);
        self.buffer.truncate(before + *outcome.as_ref().unwrap_or(&0));
        match outcome {
            Ok(0) => Err("closed the connection".into()),
            Ok(_) => {
                self.heard = Instant::now();
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(false),
                _ => Err(format!("cannot be heard: {error}")),
            },
        }
    }
}

fn write(writer: &Mutex<TcpStream>, frame: &[u8]) -> Outcome<()> {
    let mut stream = writer.lock().unwrap_or_else(PoisonError::into_inner);
    stream.write_all(frame).map_err(|error| {
        // A part may have been written: nothing can follow it.
        stream.shutdown(Shutdown::Both).ok();
        format!("cannot be reached: {error}")
    })
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.shutdown(Shutdown::Both).ok();
    }
}
