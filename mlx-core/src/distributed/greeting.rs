//! Who may work with a worker: each connection has a thread of its own until its other side has proved that it has the key, and one at a time
//! is let in. So none that proves nothing keeps rank 0 out.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::connection::{Connection, Outcome};
use super::key::{Key, are_equal, nonce};
use super::message::{PROTOCOL, Reply, Request, VERSION};
use super::workers::TIMEOUT_RANGE;

/// How long each step of the greeting may take.
const GREETING: Duration = Duration::from_secs(5);

/// The most connections that are greeted at a time.
const MOST: usize = 16;

/// How long to wait for the next connection where there is none.
const PAUSE: Duration = Duration::from_millis(20);

/// What has come of a connection.
pub(super) enum Caller {
    /// It is rank 0's, from this address.
    RankZero(Connection, String),
    /// It was closed: why.
    Refused(String),
}

/// Greets those that connect.
pub(super) struct Greeter {
    key: Key,
    /// The bytes that this worker may take.
    budget: u64,
    /// Whether one was let in and has not left.
    is_busy: AtomicBool,
    /// How many are being greeted.
    greeted: AtomicUsize,
}

impl Greeter {
    /// For a worker with this key that may take so many bytes.
    pub(super) fn new(key: Key, budget: u64) -> Self {
        Self { key, budget, is_busy: AtomicBool::new(false), greeted: AtomicUsize::new(0) }
    }

    /// Takes connections until `end` is set, and hands over what comes of each.
    pub(super) fn serve(self: &Arc<Self>, listener: &TcpListener, found: &Sender<Caller>, end: &AtomicBool) {
        while !end.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, from)) => self.take(stream, from.to_string(), found.clone()),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The one that was let in has left.
    pub(super) fn let_next_in(&self) {
        self.is_busy.store(false, Ordering::Release);
    }

    fn take(self: &Arc<Self>, stream: TcpStream, from: String, found: Sender<Caller>) {
        let greeter = Arc::clone(self);
        let greet = move || {
            let outcome = greeter.greet(stream);
            greeter.greeted.fetch_sub(1, Ordering::Relaxed);
            let caller = match outcome {
                Ok(Some(connection)) => Caller::RankZero(connection, from),
                Ok(None) => return,
                Err(error) => Caller::Refused(format!("{from} {error}")),
            };
            // A worker that has ended needs none.
            found.send(caller).ok();
        };
        // Where there are too many, or there is no thread, the connection ends here, and its other side may try again.
        let is_too_many = self.greeted.fetch_add(1, Ordering::Relaxed) >= MOST;
        if is_too_many || std::thread::Builder::new().name("greeting".into()).spawn(greet).is_err() {
            self.greeted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lets rank 0 in if it has the version and the key; `None` if another one is in, which it is sent.
    fn greet(&self, stream: TcpStream) -> Outcome<Option<Connection>> {
        stream.set_nonblocking(false).map_err(|error| error.to_string())?;
        let mut connection = Connection::new(stream, GREETING)?;
        let (proof, silence) = self.examine(&mut connection)?;
        if self.is_busy.swap(true, Ordering::AcqRel) {
            let message = "works for another rank 0 already".to_owned();
            connection.send(&Reply::Refused { message, busy: true }, &[]).ok();
            return Ok(None);
        }
        let welcome = Reply::Welcome { proof, budget: self.budget };
        let outcome = connection.send(&welcome, &[]).and_then(|()| connection.trust(silence));
        outcome.inspect_err(|_| self.let_next_in())?;
        Ok(Some(connection))
    }

    /// This worker's proof for one that has proved that it has the key, and after how long without a word it gives up.
    fn examine(&self, connection: &mut Connection) -> Outcome<(String, Duration)> {
        let ours = nonce()?;
        let hello = Reply::Hello { protocol: PROTOCOL, version: VERSION.to_owned(), nonce: ours.clone() };
        connection.send(&hello, &[])?;
        let (request, _) = connection.expect(GREETING)?;
        let Request::Join { protocol, version, nonce: theirs, proof, silence } = request else {
            return refuse(connection, "did not greet");
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
        let (least, most) = TIMEOUT_RANGE.into_inner();
        let proof = self.key.proof("worker", [&ours, &theirs]);
        Ok((proof, Duration::from_millis(silence).clamp(least, most)))
    }
}

/// Sends away who is not let in.
fn refuse<T>(connection: &Connection, message: &str) -> Outcome<T> {
    connection.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
    Err(format!("was sent away: {message}"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What a greeter sends one that joins with this, and what it says of that one; `None` if it is let in.
    fn greeted(greeter: &Arc<Greeter>, protocol: u32, version: &str) -> (Reply, Option<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (here, _) = listener.accept().expect("it was connected");
        let mut there = Connection::new(there, GREETING).expect("a socket");
        let own = Arc::clone(greeter);
        let greet = thread::spawn(move || own.greet(here).map(|_| ()).err());
        let Ok((Reply::Hello { nonce, .. }, _)) = there.expect(GREETING) else { panic!("it says nothing") };
        let proof = Key::default().proof("rank 0", [&nonce, "1"]);
        let version = version.to_owned();
        let join = Request::Join { protocol, version, nonce: "1".into(), proof, silence: 1000 };
        there.send(&join, &[]).expect("it reads");
        let (reply, _) = there.expect(GREETING).expect("an answer");
        (reply, greet.join().expect("no panic"))
    }

    #[test]
    fn rank_0_of_another_version_is_sent_away() {
        let greeter = Arc::new(Greeter::new(Key::default(), 1));
        for (protocol, version) in [(PROTOCOL, "0.0.0"), (PROTOCOL - 1, VERSION)] {
            let (reply, error) = greeted(&greeter, protocol, version);
            let Reply::Refused { message, busy: false } = reply else { panic!("{reply:?}") };
            assert!(message.contains(&format!("rank 0 is {version} (protocol {protocol})")), "{message}");
            assert!(message.contains("install the same version"), "{message}");
            assert!(error.expect("it is not let in").contains(&message));
        }
    }

    #[test]
    fn one_at_a_time_is_let_in() {
        let greeter = Arc::new(Greeter::new(Key::default(), 1));
        let join = || greeted(&greeter, PROTOCOL, VERSION).0;
        assert!(matches!(join(), Reply::Welcome { .. }));
        assert!(matches!(join(), Reply::Refused { busy: true, .. }));
        greeter.let_next_in();
        assert!(matches!(join(), Reply::Welcome { .. }));
    }
}
