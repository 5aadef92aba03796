//! Rank 0's client of a worker: its connection, handshake and requests.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::background::{Background, OnLoss};
use super::connection::{Connection, Outcome, REPLY_TIMEOUT};
use super::group_start::GroupStart;
use super::key::{Key, are_equal, nonce};
use super::message::{LoadRequest, Loaded, PROTOCOL, Reply, Request, VERSION};

/// The timeout of a connection attempt and of each step of the handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);

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
    rank: usize,
    key: Key,
    heartbeat_timeout: Duration,
    group: GroupStart,
    /// Called when a ready worker is lost, with a message that names it.
    on_loss: Option<OnLoss>,
    /// True once all workers are ready.
    is_ready: Arc<AtomicBool>,
    connection: Option<Background<Reply>>,
    /// The worker's address for the group in MLX, if it has one.
    group_address: Option<String>,
    /// The time of the last report of loading progress.
    heard: Instant,
    /// Bytes read so far and in total.
    read: Option<[u64; 2]>,
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
            rank,
            key: key.clone(),
            heartbeat_timeout,
            group: GroupStart::default(),
            on_loss,
            is_ready: Arc::default(),
            connection: None,
            group_address: None,
            heard: Instant::now(),
            read: None,
        }
    }

    /// Sets the group that the worker's process will join.
    pub(super) fn with_group(self, group: GroupStart) -> Self {
        Self { group, ..self }
    }

    /// Connects to the first reachable address.
    fn connect(&self) -> Outcome<TcpStream> {
        let found = self.address.to_socket_addrs().map_err(|error| format!("has no address: {error}"))?;
        let mut error = "has no address".to_owned();
        for address in found {
            match TcpStream::connect_timeout(&address, STEP_TIMEOUT) {
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
            group: self.group,
        };
        connection.send(&join, &[])?;
        match connection.expect(STEP_TIMEOUT)?.0 {
            Reply::Welcome { proof, budget, group_address } => {
                if !are_equal(&proof, &self.key.proof("worker", [&theirs, &ours])) {
                    return Err(Refusal::lasting("has a different key".into()));
                }
                connection.trust(self.heartbeat_timeout)?;
                connection.wait_for_start(STEP_TIMEOUT);
                let (name, is_ready) = (self.name(), Arc::clone(&self.is_ready));
                let named = |on_loss: OnLoss| -> OnLoss {
                    Arc::new(move |reason: &str| {
                        if is_ready.load(Ordering::Acquire) {
                            on_loss(&format!("{name} {reason}"));
                        }
                    })
                };
                self.connection = Some(Background::new(connection, self.on_loss.clone().map(named))?);
                (self.group_address, self.heard) = (group_address, Instant::now());
                Ok(budget)
            }
            other => Err(refusal(other)),
        }
    }

    fn connection(&self) -> Outcome<&Background<Reply>> {
        self.connection.as_ref().ok_or_else(|| "is away".to_owned())
    }

    /// Makes a connected worker load its share; [`wait`](Self::wait) waits for it.
    pub(super) fn load(&self, part: &LoadRequest) -> Outcome<()> {
        self.send(&Request::Load(part.clone()), &[])
    }

    /// Waits until the worker has loaded its share, at most until the deadline.
    pub(super) fn wait(&mut self, until: Instant) -> Result<Option<Loaded>, Refusal> {
        loop {
            match self.connection()?.receive(until)? {
                None if self.heard.elapsed() > REPLY_TIMEOUT => {
                    let minutes = REPLY_TIMEOUT.as_secs() / 60;
                    let message = format!("reported no loading progress for {minutes} minutes");
                    return Err(Refusal::lasting(message));
                }
                None => return Ok(None),
                Some((Reply::Loading { read, total }, _)) => {
                    (self.heard, self.read) = (Instant::now(), Some([read, total]));
                }
                Some((Reply::Ready(loaded), _)) => return Ok(Some(loaded)),
                Some((other, _)) => return Err(refusal(other)),
            }
        }
    }

    /// The address of the worker for the group in MLX, if it has one.
    pub(super) fn group_address(&self) -> Option<&String> {
        self.group_address.as_ref()
    }

    /// The address of this side.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        self.connection.as_ref()?.own_address()
    }

    /// Makes a connected worker send bytes back, before it loads.
    pub(super) fn echo(&self, payload: &[u8]) -> Outcome<()> {
        let connection = self.connection()?;
        connection.send(&Request::Echo, payload)?;
        match connection.expect(REPLY_TIMEOUT)? {
            (Reply::Echo, bytes) if bytes == payload => Ok(()),
            _ => Err("sent an unexpected reply".into()),
        }
    }

    /// Checks a worker that joins the group for a measurement.
    pub(super) fn expect_joining(&self) -> Outcome<()> {
        match self.connection()?.receive(Instant::now())? {
            None => Ok(()),
            Some((reply, _)) => Err(refusal(reply).message),
        }
    }

    /// Waits until the worker has taken part in a measurement.
    pub(super) fn expect_measured(&self) -> Outcome<()> {
        match self.receive()?.0 {
            Reply::Measured => Ok(()),
            other => Err(refusal(other).message),
        }
    }

    /// The bytes read so far and in total, while the worker loads.
    pub(super) fn read(&self) -> Option<[u64; 2]> {
        self.read
    }

    /// Checks that an idle worker is still connected.
    pub(super) fn check_idle(&self) -> Outcome<()> {
        self.connection()?.look()
    }

    /// Reports a loss of this worker from now on, also one that has just happened.
    pub(super) fn report_loss(&self) -> Outcome<()> {
        self.is_ready.store(true, Ordering::Release);
        self.check_idle()
    }

    /// The worker's name in messages.
    pub(super) fn name(&self) -> String {
        format!("rank {} ({})", self.rank, self.address)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If the worker is lost, and with it the states that it held.
    pub(super) fn send(&self, request: &Request, payload: &[u8]) -> Outcome<()> {
        self.connection()?.send(request, payload)
    }

    /// Returns the next reply and its payload.
    pub(super) fn receive(&self) -> Outcome<(Reply, Vec<u8>)> {
        match self.connection()?.expect(REPLY_TIMEOUT)? {
            (Reply::Refused { message, .. }, _) => Err(message),
            reply => Ok(reply),
        }
    }
}

fn refusal(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused { message, busy } => Refusal { message, is_transient: busy },
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
