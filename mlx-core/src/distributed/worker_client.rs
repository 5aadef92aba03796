//! Rank 0's client of a worker: its connection, handshake and requests.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::background::{Background, OnLoss};
use super::connection::{Connection, Outcome, REPLY_TIMEOUT};
use super::key::{Key, are_equal, nonce};
use super::message::{LoadRequest, Loaded, PROTOCOL, Reply, Request, VERSION};

/// The timeout of a connection attempt and of each step of the handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);

/// The time that rank 0 waits for a reconnected worker to become ready, per attempt.
const LOOK: Duration = Duration::from_millis(200);

/// The reason a worker cannot be used.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    /// True if a later attempt may succeed.
    pub(super) is_transient: bool,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, is_transient: true }
    }
}

impl Refusal {
    fn lasting(message: String) -> Self {
        Self { message, is_transient: false }
    }
}

/// A client of one worker.
pub(super) struct WorkerClient {
    address: String,
    /// The resolved socket addresses.
    resolved: Vec<SocketAddr>,
    rank: usize,
    key: Key,
    heartbeat_timeout: Duration,
    /// Called when the worker is lost, with a message that names it.
    on_loss: Option<OnLoss>,
    /// The worker's address for the group in MLX, if it has one.
    group_address: Option<String>,
    /// The worker's share, and its report when it was first ready. `None` before that.
    part: Option<(LoadRequest, Loaded)>,
    state: State,
}

enum State {
    Away,
    /// The worker is loading its share.
    Loading {
        connection: Background<Reply>,
        /// The time of the last progress report.
        heard: Instant,
        /// Bytes read so far and in total.
        read: Option<[u64; 2]>,
    },
    Ready(Background<Reply>),
}

impl WorkerClient {
    /// Creates a client that is not connected.
    pub(super) fn new(
        address: &str,
        rank: usize,
        key: &Key,
        heartbeat_timeout: Duration,
        on_loss: Option<OnLoss>,
    ) -> Self {
        Self {
            address: address.to_owned(),
            resolved: Vec::new(),
            rank,
            key: key.clone(),
            heartbeat_timeout,
            on_loss,
            group_address: None,
            part: None,
            state: State::Away,
        }
    }

    /// Connects to the first reachable address. Names are resolved only until the worker was ready once: resolving may take long, and
    /// later it would delay other work of the engine.
    fn connect(&mut self) -> Outcome<TcpStream> {
        if self.part.is_none() {
            let found = self.address.to_socket_addrs().map_err(|error| format!("has no address: {error}"))?;
            self.resolved = found.collect();
        }
        let mut error = "has no address".to_owned();
        for address in &self.resolved {
            match TcpStream::connect_timeout(address, STEP_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(why) => error = format!("cannot be reached: {why}; is `mlx worker` running there?"),
            }
        }
        Err(error)
    }

    /// Connects and runs the handshake. Returns the worker's memory budget in bytes.
    pub(super) fn greet(&mut self) -> Result<u64, Refusal> {
        let mut connection = Connection::new(self.connect()?, self.heartbeat_timeout.max(STEP_TIMEOUT))?;
        let theirs = match connection.expect(STEP_TIMEOUT)?.0 {
            Reply::Hello { protocol: PROTOCOL, version, nonce } if version == VERSION => nonce,
            Reply::Hello { version, protocol, .. } => {
                let message = format!(
                    "runs version {version} (protocol {protocol}), and this is {VERSION} (protocol {PROTOCOL}); install the same version"
                );
                return Err(Refusal::lasting(message));
            }
            other => return Err(refusal(other)),
        };
        let ours = nonce()?;
        let proof = self.key.proof("rank 0", [&theirs, &ours]);
        let heartbeat_timeout = self.heartbeat_timeout.as_millis() as u64;
        let join = Request::Join {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            rank: self.rank,
            nonce: ours.clone(),
            proof,
            heartbeat_timeout,
        };
        connection.send(&join, &[])?;
        match connection.expect(STEP_TIMEOUT)?.0 {
            Reply::Welcome { proof, budget, group_address } => {
                if !are_equal(&proof, &self.key.proof("worker", [&theirs, &ours])) {
                    return Err(Refusal::lasting("has a different key".into()));
                }
                connection.trust(self.heartbeat_timeout)?;
                connection.wait_for_start(STEP_TIMEOUT);
                let name = self.name();
                let named = |on_loss: OnLoss| -> OnLoss {
                    Arc::new(move |reason: &str| on_loss(&format!("{name} {reason}")))
                };
                let connection = Background::new(connection, self.on_loss.clone().map(named))?;
                self.group_address = group_address;
                self.state = State::Loading { connection, heard: Instant::now(), read: None };
                Ok(budget)
            }
            other => Err(refusal(other)),
        }
    }

    /// Makes a connected worker load its share; [`wait`](Self::wait) waits for it.
    pub(super) fn load(&mut self, part: &LoadRequest) -> Outcome<()> {
        match &self.state {
            State::Loading { connection, .. } => connection.send(&Request::Load(part.clone()), &[]),
            State::Away | State::Ready(_) => Err("is away".into()),
        }
    }

    /// Waits until the worker is ready, at most until the deadline.
    fn poll_ready(&mut self, until: Instant) -> Result<Option<Loaded>, Refusal> {
        let State::Loading { connection, heard, read } = &mut self.state else {
            return Err("is away".to_owned().into());
        };
        loop {
            match connection.receive(until)? {
                None if heard.elapsed() > REPLY_TIMEOUT => {
                    let minutes = REPLY_TIMEOUT.as_secs() / 60;
                    let message = format!("reported no loading progress for {minutes} minutes");
                    return Err(Refusal::lasting(message));
                }
                None => return Ok(None),
                Some((Reply::Loading { read: bytes, total }, _)) => {
                    (*heard, *read) = (Instant::now(), Some([bytes, total]));
                }
                Some((Reply::Ready(loaded), _)) => return Ok(Some(loaded)),
                Some((other, _)) => return Err(refusal(other)),
            }
        }
    }

    /// Waits until the worker has loaded its share for the first time, at most until the deadline.
    pub(super) fn wait(&mut self, part: &LoadRequest, until: Instant) -> Result<Option<Loaded>, Refusal> {
        let found = self.poll_ready(until)?;
        if let Some(loaded) = &found {
            self.part = Some((part.clone(), loaded.clone()));
            self.become_ready();
        }
        Ok(found)
    }

    /// The address of the worker for the group in MLX, if it has one.
    pub(super) fn group_address(&self) -> Option<&String> {
        self.group_address.as_ref()
    }

    /// The address of this side, while the worker loads.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        match &self.state {
            State::Loading { connection, .. } => connection.own_address(),
            State::Away | State::Ready(_) => None,
        }
    }

    /// Makes a connected worker send bytes back, before it loads.
    pub(super) fn echo(&self, payload: &[u8]) -> Outcome<()> {
        let State::Loading { connection, .. } = &self.state else { return Err("is away".into()) };
        connection.send(&Request::Echo, payload)?;
        match connection.expect(REPLY_TIMEOUT)? {
            (Reply::Echo, bytes) if bytes == payload => Ok(()),
            _ => Err("sent an unexpected reply".into()),
        }
    }

    /// The bytes read so far and in total, while the worker loads.
    pub(super) fn read(&self) -> Option<[u64; 2]> {
        match &self.state {
            State::Loading { read, .. } => *read,
            State::Away | State::Ready(_) => None,
        }
    }

    /// Checks that an idle worker is still connected.
    pub(super) fn check_idle(&mut self) -> Outcome<()> {
        let State::Ready(connection) = &mut self.state else { return Err("is away".into()) };
        connection.look()
    }

    fn become_ready(&mut self) {
        if let State::Loading { connection, .. } = std::mem::replace(&mut self.state, State::Away) {
            self.state = State::Ready(connection);
        }
    }

    /// Reconnects to a worker and makes it load its share; false if it is still loading.
    fn reconnect(&mut self) -> Outcome<bool> {
        let Some((part, before)) = self.part.clone() else { return Err("was never ready".into()) };
        if let State::Away = self.state {
            self.greet().map_err(|refusal| refusal.message)?;
            self.load(&part)?;
        }
        let found = self.poll_ready(Instant::now() + LOOK).map_err(|refusal| refusal.message)?;
        let Some(loaded) = found else { return Ok(false) };
        if loaded.fingerprint != before.fingerprint {
            return Err("has other weights than before; restart this server".into());
        }
        if loaded.room < before.room {
            return Err("has less memory than before; restart this server".into());
        }
        self.become_ready();
        Ok(true)
    }

    /// The worker's name in messages.
    pub(super) fn name(&self) -> String {
        format!("rank {} ({})", self.rank, self.address)
    }

    /// Sends a request and returns the reply.
    ///
    /// # Errors
    /// If the worker is lost, and with it the states that it held.
    pub(super) fn call(&mut self, request: &Request, payload: &[u8]) -> Outcome<(Reply, Vec<u8>)> {
        self.send(request, payload)?;
        self.receive()
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: &Request, payload: &[u8]) -> Outcome<()> {
        let State::Ready(connection) = &mut self.state else { return Err("is away".into()) };
        connection.send(request, payload)
    }

    /// Returns the next reply.
    pub(super) fn receive(&mut self) -> Outcome<(Reply, Vec<u8>)> {
        let State::Ready(connection) = &mut self.state else { return Err("is away".into()) };
        match connection.expect(REPLY_TIMEOUT)? {
            (Reply::Refused { message, .. }, _) => Err(message),
            answer => Ok(answer),
        }
    }

    /// Drops the connection.
    pub(super) fn disconnect(&mut self) {
        self.state = State::Away;
    }

    /// Reconnects to a lost worker; false if it is still loading. May take 3 s per address, and 3 s for each of two steps of the handshake.
    pub(super) fn join(&mut self) -> Outcome<bool> {
        if let State::Ready(_) = self.state {
            return Ok(true);
        }
        self.reconnect().inspect_err(|_| self.disconnect())
    }

    /// Checks that the worker replies.
    pub(super) fn ping(&mut self) -> Outcome<()> {
        match self.call(&Request::Ping { released: Vec::new() }, &[]) {
            Ok((Reply::Pong, _)) => Ok(()),
            outcome => {
                self.disconnect();
                Err(outcome.err().unwrap_or_else(|| "sent an unexpected reply".into()))
            }
        }
    }
}

fn refusal(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused { message, busy } => Refusal { message, is_transient: busy },
        Reply::Failed { message } => Refusal::lasting(message),
        _ => Refusal::lasting("sent an unexpected reply".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::distributed::fake_worker::FakeWorker;

    #[test]
    fn a_worker_of_another_version_is_refused_for_good() {
        for (protocol, version) in [(PROTOCOL, "0.0.0"), (PROTOCOL + 1, VERSION)] {
            let worker = FakeWorker::listen();
            let mut client = worker.client(1);
            let hello = thread::spawn(move || worker.hello(protocol, version));
            let refusal = client.greet().expect_err("it is another version");
            assert!(!refusal.is_transient);
            let message = refusal.message;
            assert!(message.contains(&format!("runs version {version} (protocol {protocol})")), "{message}");
            assert!(message.contains("install the same version"), "{message}");
            hello.join().expect("it says so");
        }
    }
}
