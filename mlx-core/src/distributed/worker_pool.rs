//! The workers of a model: requests to all of them, and their presence.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use safetensors::Dtype;

use super::connection::Outcome;
use super::message::{RemoteStateInfo, Reply, Request, StateCommand};
use super::sum::sum;
use super::worker_client::WorkerClient;
use crate::error::{Error, Result};

/// The time between two attempts to reconnect.
const PAUSE: Duration = Duration::from_secs(1);

/// All workers, in the order of their layers.
pub(super) struct WorkerPool {
    clients: Mutex<Vec<WorkerClient>>,
    presence: Mutex<Presence>,
    last_id: AtomicU64,
    /// For each worker, the states that it has to release.
    released: Mutex<Vec<Vec<u64>>>,
    /// True if lost workers are connected again. Otherwise the engine's process ends.
    reconnects: bool,
}

/// The presence of the workers.
enum Presence {
    All,
    /// A worker is lost: the reason, and true if the engine has handled it.
    Lost {
        message: String,
        is_known: bool,
        looked: Instant,
    },
}

impl WorkerPool {
    /// Creates a pool of workers that are ready.
    pub(super) fn new(clients: Vec<WorkerClient>, reconnects: bool) -> Self {
        let released = Mutex::new(vec![Vec::new(); clients.len()]);
        Self {
            clients: Mutex::new(clients),
            presence: Mutex::new(Presence::All),
            last_id: AtomicU64::new(0),
            released,
            reconnects,
        }
    }

    /// The lost worker and the reason, if one was lost.
    pub(super) fn outage(&self) -> Option<String> {
        match &*lock(&self.presence) {
            Presence::All => None,
            Presence::Lost { message, .. } => Some(message.clone()),
        }
    }

    /// Returns the reply of the worker at this index. After a malformed reply the worker counts as lost.
    pub(super) fn call(&self, place: usize, request: &Request, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
        self.with(place, |client| client.call(request, payload))
    }

    /// Sends a request to the worker at this index.
    pub(super) fn send(&self, place: usize, request: &Request, payload: &[u8]) -> Result<()> {
        self.with(place, |client| client.send(request, payload))
    }

    /// Returns the next reply of the worker at this index.
    pub(super) fn receive(&self, place: usize) -> Result<(Reply, Vec<u8>)> {
        self.with(place, WorkerClient::receive)
    }

    fn with<T>(&self, place: usize, speak: impl FnOnce(&mut WorkerClient) -> Outcome<T>) -> Result<T> {
        if let Some(message) = self.outage() {
            return Err(Error::Distributed(message));
        }
        let outcome = {
            let mut clients = lock(&self.clients);
            let outcome = speak(&mut clients[place]);
            outcome.map_err(|message| format!("{} {message}", clients[place].name()))
        };
        outcome.map_err(|message| self.mark_lost(message))
    }

    /// The number of workers.
    pub(super) fn count(&self) -> usize {
        lock(&self.clients).len()
    }

    /// Adds the terms of all workers to `part`, in the order of their ranks, and sends them the sum.
    pub(super) fn sum(&self, dtype: Dtype, part: Vec<u8>) -> Result<Vec<u8>> {
        let mut parts = vec![part];
        for place in 0..self.count() {
            match self.receive(place)? {
                (Reply::Partial, other) if other.len() == parts[0].len() => parts.push(other),
                (Reply::Failed { message }, _) => return Err(self.mark_failed(place, &message)),
                _ => return Err(self.malformed(place)),
            }
        }
        let unknown = || self.mark_lost(format!("rank 0 cannot sum {dtype:?}"));
        let sum = sum(dtype, &parts).ok_or_else(unknown)?;
        for place in 0..self.count() {
            self.send(place, &Request::Sum, &sum)?;
        }
        Ok(sum)
    }

    /// Marks all workers as lost: none of them holds a state any more.
    pub(super) fn mark_lost(&self, message: String) -> Error {
        lock(&self.clients).iter_mut().for_each(WorkerClient::disconnect);
        lock(&self.released).iter_mut().for_each(Vec::clear);
        let mut presence = lock(&self.presence);
        if let Presence::All = *presence {
            tracing::warn!(message, "lost a machine that holds a part of the model");
            *presence = Presence::Lost { message: message.clone(), is_known: false, looked: Instant::now() };
        }
        Error::Distributed(message)
    }

    /// Marks all workers as lost after one failed in the middle of a common pass.
    pub(super) fn mark_failed(&self, place: usize, message: &str) -> Error {
        let name = lock(&self.clients)[place].name();
        self.mark_lost(format!("{name} could not continue: {message}"))
    }

    /// Marks all workers as lost after a malformed reply.
    pub(super) fn malformed(&self, place: usize) -> Error {
        let name = lock(&self.clients)[place].name();
        self.mark_lost(format!("{name} sent an unexpected reply"))
    }

    /// Checks that all workers are present; with `ask`, pings each of them. After a loss, the first call reports it, so that the engine drops
    /// its states. Later calls try to reconnect.
    pub(super) fn check_workers(&self, ask: bool) -> Result<()> {
        let count = lock(&self.clients).len();
        let is_here = matches!(*lock(&self.presence), Presence::All);
        if is_here && ask {
            for place in 0..count {
                let released = self.take_released(place);
                let outcome = self.call(place, &Request::Ping { released }, &[]);
                if !matches!(outcome?.0, Reply::Pong) {
                    return Err(self.malformed(place));
                }
            }
        }
        let mut presence = lock(&self.presence);
        let Presence::Lost { message, is_known, looked } = &mut *presence else { return Ok(()) };
        if !std::mem::replace(is_known, true) || looked.elapsed() < PAUSE || !self.reconnects {
            return Err(Error::Distributed(message.clone()));
        }
        if let Err(error) = join_all(&mut lock(&self.clients)) {
            *message = error;
            *looked = Instant::now();
            return Err(Error::Distributed(message.clone()));
        }
        tracing::info!("reconnected to all machines that hold the model");
        *presence = Presence::All;
        Ok(())
    }

    /// Takes the states that the worker at this index still has to release.
    pub(super) fn take_released(&self, place: usize) -> Vec<u64> {
        std::mem::take(&mut lock(&self.released)[place])
    }

    /// Returns an unused state number.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Changes a state on all workers. Returns their reports, in the order of their layers. After an error the workers hold no states, and
    /// every later pass fails.
    pub(super) fn change(&self, id: u64, change: StateCommand) -> Result<Vec<RemoteStateInfo>> {
        let count = lock(&self.clients).len();
        let of_worker = |place| {
            let released = self.take_released(place);
            match self.call(place, &Request::Change { id, change, released }, &[])?.0 {
                Reply::Changed(info) => Ok(info),
                Reply::Failed { message } => {
                    let name = lock(&self.clients)[place].name();
                    Err(self.mark_lost(format!("{name} could not change a state: {message}")))
                }
                _ => Err(self.malformed(place)),
            }
        };
        (0..count).map(of_worker).collect()
    }

    /// Releases a state on all workers.
    pub(super) fn release(&self, id: u64) {
        lock(&self.released).iter_mut().for_each(|released| released.push(id));
    }
}

/// Reconnects to all lost workers, so that they load at the same time; returns the first error. Then pings all of them, because one that was
/// connected before may be lost by now.
fn join_all(clients: &mut [WorkerClient]) -> Result<(), String> {
    let mut all = Ok(());
    for client in &mut *clients {
        let one = match client.join() {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{} is loading its share of the model", client.name())),
            Err(error) => Err(format!("{} {error}", client.name())),
        };
        all = all.and(one);
    }
    all?;
    for client in clients {
        client.ping().map_err(|error| format!("{} {error}", client.name()))?;
    }
    Ok(())
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::fake_worker::{FakeWorker, SOON, asked_to_load, part, ready};

    #[test]
    fn workers_that_come_back_load_at_the_same_time() {
        let (mut clients, asked): (Vec<WorkerClient>, Vec<_>) = (1..=3)
            .map(|rank| {
                let mut is_first = true;
                FakeWorker::start(rank, move |mut connection, found| {
                    let part = asked_to_load(&mut connection);
                    if std::mem::take(&mut is_first) {
                        connection.send(&ready(), &[]).expect("rank 0 reads");
                    }
                    found.send(part).expect("the test waits");
                    connection.trust(SOON).expect("a thread");
                    // Ends when rank 0 disconnects.
                    connection.expect::<Request>(SOON).expect_err("rank 0 asks nothing");
                })
            })
            .unzip();
        for client in &mut clients {
            client.greet().expect("it is there");
            client.load(&part()).expect("it reads");
            client.wait(&part(), Instant::now() + SOON).expect("it is there").expect("it is ready");
            client.disconnect();
        }
        let first = join_all(&mut clients).expect_err("none is ready");
        assert!(
            first.starts_with("rank 1 ") && first.ends_with("is loading its share of the model"),
            "{first}"
        );
        for asked in asked {
            for _ in 0..2 {
                assert_eq!(asked.recv_timeout(SOON), Ok(part()));
            }
        }
    }
}
