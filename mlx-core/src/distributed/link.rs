//! Rank 0's end of the connection to a worker.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::connection::{Connection, Outcome, REPLY_TIMEOUT};
use super::fleet::Peer;
use super::key::{Key, are_equal, nonce};
use super::message::{PROTOCOL, Part, Reply, Request, VERSION};
use super::pipeline::Joined;

/// How long a connection and each step of the greeting may take.
const GREETING: Duration = Duration::from_secs(3);

/// How long rank 0 looks whether a worker that has come back is ready.
const LOOK: Duration = Duration::from_millis(200);

/// Why a worker cannot be worked with.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    /// Whether it may help to try again soon.
    pub(super) is_passing: bool,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, is_passing: true }
    }
}

impl Refusal {
    fn lasting(message: String) -> Self {
        Self { message, is_passing: false }
    }
}

/// A worker, by its address.
pub(super) struct Link {
    address: String,
    rank: usize,
    key: Key,
    silence: Duration,
    /// What it is to load, once that is known, and what it said when it had done so for the first time.
    part: Option<(Part, Joined)>,
    state: State,
}

enum State {
    Away,
    /// It is loading its part.
    Loading(Connection),
    Ready(Connection),
}

impl Link {
    /// A worker that was not asked for anything yet.
    pub(super) fn new(address: &str, rank: usize, key: &Key, silence: Duration) -> Self {
        let (address, key) = (address.to_owned(), key.clone());
        Self { address, rank, key, silence, part: None, state: State::Away }
    }

    /// Greets it; gives the bytes that it may take.
    pub(super) fn greet(&mut self) -> Result<u64, Refusal> {
        let addresses = self.address.to_socket_addrs();
        let mut addresses =
            addresses.map_err(|error| Refusal::lasting(format!("has no address: {error}")))?;
        let Some(address) = addresses.next() else { return Err(Refusal::lasting("has no address".into())) };
        let stream = TcpStream::connect_timeout(&address, GREETING)
            .map_err(|error| format!("cannot be reached: {error}; is `mlx worker` running there?"))?;
        let mut connection = Connection::new(stream, self.silence.max(GREETING))?;
        let theirs = match connection.expect(GREETING)?.0 {
            Reply::Hello { protocol: PROTOCOL, version, nonce } if version == VERSION => nonce,
            Reply::Hello { version, protocol, .. } => {
                let message = format!(
                    "runs version {version} (protocol {protocol}), and this is {VERSION} (protocol {PROTOCOL}); install the same version"
                );
                return Err(Refusal::lasting(message));
            }
            other => return Err(refusal(other)),
        };
        let ours = nonce();
        let proof = self.key.proof("rank 0", [&theirs, &ours]);
        let silence = self.silence.as_millis() as u64;
        let join = Request::Join {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            nonce: ours.clone(),
            proof,
            silence,
        };
        connection.send(&join, &[])?;
        match connection.expect(GREETING)?.0 {
            Reply::Welcome { proof, budget } => {
                if !are_equal(&proof, &self.key.proof("worker", [&theirs, &ours])) {
                    return Err(Refusal::lasting("has another key".into()));
                }
                connection.trust(self.silence)?;
                self.state = State::Loading(connection);
                Ok(budget)
            }
            other => Err(refusal(other)),
        }
    }

    /// Has it load its part, which [`wait`](Self::wait) waits for. It was greeted.
    pub(super) fn load(&mut self, part: &Part) -> Outcome<()> {
        match &self.state {
            State::Loading(connection) => connection.send(&Request::Load(part.clone()), &[]),
            State::Away | State::Ready(_) => Err("was not greeted".into()),
        }
    }

    /// Waits until it is ready, or until then.
    fn look(&mut self, until: Instant) -> Result<Option<Joined>, Refusal> {
        let State::Loading(connection) = &mut self.state else { return Err("is away".to_owned().into()) };
        loop {
            match connection.receive(until)? {
                None => return Ok(None),
                Some((Reply::Loading { .. }, _)) => {}
                Some((Reply::Ready { room, fingerprint, .. }, _)) => {
                    return Ok(Some(Joined { room, fingerprint }));
                }
                Some((other, _)) => return Err(refusal(other)),
            }
        }
    }

    /// Waits until it has loaded its part for the first time, or until then.
    pub(super) fn wait(&mut self, part: &Part, until: Instant) -> Result<Option<Joined>, Refusal> {
        let found = self.look(until)?;
        if let Some(joined) = &found {
            self.part = Some((part.clone(), joined.clone()));
            self.become_ready();
        }
        Ok(found)
    }

    fn become_ready(&mut self) {
        if let State::Loading(connection) = std::mem::replace(&mut self.state, State::Away) {
            self.state = State::Ready(connection);
        }
    }

    /// Greets it again after it was away, and has it load its part.
    fn come_back(&mut self) -> Outcome<()> {
        let Some((part, before)) = self.part.clone() else { return Err("was never ready".into()) };
        if let State::Away = self.state {
            self.greet().map_err(|refusal| refusal.message)?;
            self.load(&part)?;
        }
        let found = self.look(Instant::now() + LOOK).map_err(|refusal| refusal.message)?;
        let joined = found.ok_or("is loading its part of the model")?;
        if joined.fingerprint != before.fingerprint {
            return Err("has other weights than before; start this server again".into());
        }
        if joined.room < before.room {
            return Err("has less memory than before; start this server again".into());
        }
        self.become_ready();
        Ok(())
    }
}

impl Peer for Link {
    fn name(&self) -> String {
        format!("rank {} ({})", self.rank, self.address)
    }

    fn call(&mut self, request: &Request, payload: &[u8]) -> Outcome<(Reply, Vec<u8>)> {
        let State::Ready(connection) = &mut self.state else { return Err("is away".into()) };
        connection.send(request, payload)?;
        match connection.expect(REPLY_TIMEOUT)? {
            (Reply::Refused { message, .. }, _) => Err(message),
            answer => Ok(answer),
        }
    }

    fn leave(&mut self) {
        self.state = State::Away;
    }

    fn join(&mut self) -> Outcome<()> {
        if let State::Ready(_) = self.state {
            return Ok(());
        }
        let outcome = self.come_back();
        let is_loading = matches!(self.state, State::Loading(_));
        if outcome.is_err() && !(is_loading && outcome.as_ref().is_err_and(|it| it.starts_with("is loading")))
        {
            self.leave();
        }
        outcome
    }
}

fn refusal(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused { message, busy } => Refusal { message, is_passing: busy },
        Reply::Failed { message } => Refusal::lasting(message),
        _ => Refusal::lasting("sent an answer that makes no sense".into()),
    }
}
