//! A worker's side of the handshake. Each connection has its own thread until its peer has proved that it has the key. Then one peer at a time
//! is admitted, so an unproven connection cannot block rank 0.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::admitted::Admitted;
use super::connection::{Connection, Outcome};
use super::group;
use super::group_start::GroupStart;
use super::key::{Key, are_equal, nonce};
use super::message::{PROTOCOL, Reply, Request, VERSION};
use super::workers::TIMEOUT_RANGE;

/// The time limit of each step of the handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of simultaneous handshakes.
const MAX_HANDSHAKES: usize = 16;

/// The pause between two attempts to accept a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// The result of a handshake.
pub(super) enum HandshakeOutcome {
    /// An admitted rank 0.
    RankZero(Admitted),
    /// The reason a connection was closed.
    Refused(String),
}

/// Runs handshakes.
pub(super) struct Handshake {
    key: Key,
    /// The memory budget of this worker in bytes.
    budget: u64,
    /// True while a rank 0 is connected.
    is_busy: AtomicBool,
    /// The number of handshakes in progress.
    greeted: AtomicUsize,
}

impl Handshake {
    /// Creates the handshake of a worker with this key and memory budget in bytes.
    pub(super) fn new(key: Key, budget: u64) -> Self {
        Self { key, budget, is_busy: AtomicBool::new(false), greeted: AtomicUsize::new(0) }
    }

    /// Accepts connections until `end` is set, and sends the outcome of each handshake.
    pub(super) fn serve(
        self: &Arc<Self>,
        listener: &TcpListener,
        found: &Sender<HandshakeOutcome>,
        end: &AtomicBool,
    ) {
        while !end.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, from)) => self.take(stream, from.to_string(), found.clone()),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Admits the next rank 0 after the current one has left.
    pub(super) fn admit_next(&self) {
        self.is_busy.store(false, Ordering::Release);
    }

    fn take(self: &Arc<Self>, stream: TcpStream, from: String, found: Sender<HandshakeOutcome>) {
        let handshake = Arc::clone(self);
        let greet = move || {
            let outcome = handshake.greet(stream, &from);
            handshake.greeted.fetch_sub(1, Ordering::Relaxed);
            let caller = match outcome {
                Ok(Some(admitted)) => HandshakeOutcome::RankZero(admitted),
                Ok(None) => return,
                Err(error) => HandshakeOutcome::Refused(format!("{from} {error}")),
            };
            // The receiver is gone if the worker has ended.
            found.send(caller).ok();
        };
        // With too many handshakes, or without a thread, the connection closes here. The peer may try again.
        let is_too_many = self.greeted.fetch_add(1, Ordering::Relaxed) >= MAX_HANDSHAKES;
        if is_too_many || std::thread::Builder::new().name("handshake".into()).spawn(greet).is_err() {
            self.greeted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Admits a rank 0 that has the version and the key. While another one is connected, refuses it and returns `None`.
    fn greet(&self, stream: TcpStream, from: &str) -> Outcome<Option<Admitted>> {
        stream.set_nonblocking(false).map_err(|error| error.to_string())?;
        let mut connection = Connection::new(stream, STEP_TIMEOUT)?;
        let (proof, rank, heartbeat_timeout, group) = self.examine(&mut connection)?;
        if self.is_busy.swap(true, Ordering::AcqRel) {
            let message = "already works for another rank 0".to_owned();
            connection.send(&Reply::Refused { message, busy: true }, &[]).ok();
            return Ok(None);
        }
        let own = connection.stream().ok().and_then(|stream| stream.local_addr().ok());
        let group_address = own.and_then(group::free_address);
        let welcome = Reply::Welcome { proof, budget: self.budget, group_address };
        let outcome = connection.send(&welcome, &[]).and_then(|()| connection.into_stream());
        let stream = outcome.inspect_err(|_| self.admit_next())?;
        Ok(Some(Admitted { stream, from: from.to_owned(), rank, heartbeat_timeout, group }))
    }

    /// Checks the peer's proof. Returns this worker's proof, its rank, the heartbeat timeout and the group.
    fn examine(&self, connection: &mut Connection) -> Outcome<(String, usize, Duration, GroupStart)> {
        let ours = nonce()?;
        let hello = Reply::Hello { protocol: PROTOCOL, version: VERSION.to_owned(), nonce: ours.clone() };
        connection.send(&hello, &[])?;
        let (request, _) = connection.expect(STEP_TIMEOUT)?;
        let Request::Join { protocol, version, rank, nonce: theirs, proof, heartbeat_timeout, group } =
            request
        else {
            return refuse(connection, "did not join");
        };
        if protocol != PROTOCOL || version != VERSION {
            let message = format!(
                "is version {VERSION} (protocol {PROTOCOL}), and rank 0 is {version} (protocol {protocol}); install the same version"
            );
            return refuse(connection, &message);
        }
        if !are_equal(&proof, &self.key.proof("rank 0", [&ours, &theirs])) {
            return refuse(connection, "does not accept the key: give both sides the same key file");
        }
        if let Err(error) = group.backend.expect_available() {
            return refuse(connection, &error.to_string());
        }
        let (least, most) = TIMEOUT_RANGE.into_inner();
        let proof = self.key.proof("worker", [&ours, &theirs]);
        Ok((proof, rank, Duration::from_millis(heartbeat_timeout).clamp(least, most), group))
    }
}

/// Refuses a connection.
fn refuse<T>(connection: &Connection, message: &str) -> Outcome<T> {
    connection.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
    Err(format!("was refused: {message}"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns the reply to a rank 0 that joins with this version, and the error; `None` if it is admitted.
    fn greeted(handshake: &Arc<Handshake>, protocol: u32, version: &str) -> (Reply, Option<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (here, _) = listener.accept().expect("it was connected");
        let mut there = Connection::new(there, STEP_TIMEOUT).expect("a socket");
        let own = Arc::clone(handshake);
        let greet = thread::spawn(move || own.greet(here, "rank 0").map(|_| ()).err());
        let Ok((Reply::Hello { nonce, .. }, _)) = there.expect(STEP_TIMEOUT) else {
            panic!("it says nothing")
        };
        let proof = Key::default().proof("rank 0", [&nonce, "1"]);
        let version = version.to_owned();
        let nonce = "1".into();
        let (rank, heartbeat_timeout, group) = (1, 1000, GroupStart::default());
        let join = Request::Join { protocol, version, rank, nonce, proof, heartbeat_timeout, group };
        there.send(&join, &[]).expect("it reads");
        let (reply, _) = there.expect(STEP_TIMEOUT).expect("an answer");
        (reply, greet.join().expect("no panic"))
    }

    #[test]
    fn rank_0_of_another_version_is_sent_away() {
        let handshake = Arc::new(Handshake::new(Key::default(), 1));
        for (protocol, version) in [(PROTOCOL, "0.0.0"), (PROTOCOL - 1, VERSION)] {
            let (reply, error) = greeted(&handshake, protocol, version);
            let Reply::Refused { message, busy: false } = reply else { panic!("{reply:?}") };
            assert!(message.contains(&format!("rank 0 is {version} (protocol {protocol})")), "{message}");
            assert!(message.contains("install the same version"), "{message}");
            assert!(error.expect("it is not let in").contains(&message));
        }
    }

    #[test]
    fn one_at_a_time_is_let_in() {
        let handshake = Arc::new(Handshake::new(Key::default(), 1));
        let join = || greeted(&handshake, PROTOCOL, VERSION).0;
        assert!(matches!(join(), Reply::Welcome { .. }));
        assert!(matches!(join(), Reply::Refused { busy: true, .. }));
        handshake.admit_next();
        assert!(matches!(join(), Reply::Welcome { .. }));
    }
}
