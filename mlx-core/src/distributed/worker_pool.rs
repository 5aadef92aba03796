//! The workers of a model: requests to all of them. Invariant: after any failure the workers are lost, and the engine's process ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::background::OnLoss;
use super::connection::Outcome;
use super::message::{RemoteStateInfo, Reply, Request, StateCommand};
use super::ring_links::ERROR_GRACE;
use super::saved_layers::{packed, unpacked};
use super::worker_client::WorkerClient;
use crate::cache::{SavedLayer, SavedLayers, SavedPart};
use crate::error::{Error, Result};
use crate::model::OtherMachines;

/// All workers, in the order of their layers.
pub(super) struct WorkerPool {
    clients: Vec<WorkerClient>,
    /// The number of passes that each worker has issued and not reported as computed.
    pending: Vec<AtomicUsize>,
    /// The peak bytes of arrays that each worker has reported.
    peaks: Vec<AtomicU64>,
    /// The number of layers of a state on each worker.
    saved_layers: Vec<SavedLayers>,
    last_id: AtomicU64,
    on_loss: OnLoss,
}

impl WorkerPool {
    /// Creates a pool of workers that are ready. `on_loss` is called with a message that names a lost worker.
    pub(super) fn new(clients: Vec<WorkerClient>, saved_layers: Vec<SavedLayers>, on_loss: OnLoss) -> Self {
        let peaks = clients.iter().map(|_| AtomicU64::new(0)).collect();
        let pending = clients.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { clients, pending, peaks, saved_layers, last_id: AtomicU64::new(0), on_loss }
    }

    /// The number of workers.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Sends a request to the worker at this index.
    pub(super) fn send(&self, place: usize, request: &Request) -> Result<()> {
        self.of(place, |client| client.send(request, &[]))
    }

    /// Returns the reply of the worker at this index to the newest request, and its payload.
    fn receive(&self, place: usize) -> Result<(Reply, Vec<u8>)> {
        loop {
            let reply = self.of(place, WorkerClient::receive)?;
            if reply.0 != Reply::Computed {
                return Ok(reply);
            }
            self.record_computed(place)?;
        }
    }

    fn record_computed(&self, place: usize) -> Result<()> {
        let pending = &self.pending[place];
        let left = pending.load(Ordering::Relaxed).checked_sub(1).ok_or_else(|| self.malformed(place))?;
        pending.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// Returns an unused state number.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the report of the worker at this index about the `count` states of a pass.
    pub(super) fn report(&self, place: usize, count: usize) -> Result<Vec<RemoteStateInfo>> {
        match self.receive(place)?.0 {
            Reply::Advanced { states, peak } if states.len() == count => {
                self.peaks[place].store(peak, Ordering::Relaxed);
                self.pending[place].fetch_add(1, Ordering::Relaxed);
                Ok(states)
            }
            _ => Err(self.malformed(place)),
        }
    }

    /// Changes a state on all workers. Returns their reports, in the order of their layers.
    pub(super) fn change(&self, id: u64, change: StateCommand) -> Result<Vec<RemoteStateInfo>> {
        let places = 0..self.count();
        places.clone().try_for_each(|place| self.send(place, &Request::Change { id, change }))?;
        let report = |place| match self.receive(place)?.0 {
            Reply::Changed(info) => Ok(info),
            _ => Err(self.malformed(place)),
        };
        places.map(report).collect()
    }

    /// Returns a part of a state as arrays of each layer, in the order of layers. `None` if a worker cannot send it.
    pub(super) fn export(&self, id: u64, part: &SavedPart) -> Result<Option<Vec<Vec<SavedLayer>>>> {
        let mut all = Vec::new();
        for (place, layers) in self.saved_layers.iter().enumerate().filter(|it| it.1.of(part) > 0) {
            self.send(place, &Request::Export { id, part: part.clone() })?;
            let (Reply::Exported { layers: header }, payload) = self.receive(place)? else {
                return Err(self.malformed(place));
            };
            let Some(header) = header else { return Ok(None) };
            match unpacked(&header, &payload) {
                Some(found) if found.len() == layers.of(part) => all.extend(found),
                _ => return Err(self.malformed(place)),
            }
        }
        Ok(Some(all))
    }

    /// Adds a saved part to a state. Returns the reports of the workers that have layers of it, with their indices.
    pub(super) fn import(
        &self,
        id: u64,
        part: &SavedPart,
        layers: &[&[SavedLayer]],
    ) -> Result<Vec<(usize, RemoteStateInfo)>> {
        if layers.len() != self.saved_layers.iter().map(|it| it.of(part)).sum::<usize>() {
            return Err(Error::Cache("a saved part has another number of layers than the model".into()));
        }
        let (mut rest, mut infos) = (layers, Vec::new());
        for (place, count) in self.saved_layers.iter().map(|it| it.of(part)).enumerate() {
            let (own, others) = rest.split_at(count);
            rest = others;
            if count == 0 {
                continue;
            }
            let packed = packed(own.iter().copied());
            let (layers, payload) =
                packed.ok_or_else(|| Error::Cache("a saved part is too large to be sent".into()))?;
            let request = Request::Import { id, part: part.clone(), layers };
            self.of(place, |client| client.send(&request, &payload))?;
            match self.receive(place)?.0 {
                Reply::Imported(Ok(info)) => infos.push((place, info)),
                Reply::Imported(Err(message)) => return Err(Error::Cache(message)),
                _ => return Err(self.malformed(place)),
            }
        }
        Ok(infos)
    }

    /// Releases a state on all workers.
    pub(super) fn release(&self, id: u64) {
        for place in 0..self.count() {
            if self.send(place, &Request::Release { id }).is_err() {
                return;
            }
        }
    }

    /// Reports that the workers are lost.
    fn lost(&self, message: &str) -> Error {
        (self.on_loss)(message);
        Error::Distributed(message.to_owned())
    }

    fn malformed(&self, place: usize) -> Error {
        self.lost(&format!("{} sent an unexpected reply", self.clients[place].name()))
    }

    /// Returns the result of an exchange with the worker at this index.
    fn of<T>(&self, place: usize, exchange: impl FnOnce(&WorkerClient) -> Outcome<T>) -> Result<T> {
        let client = &self.clients[place];
        exchange(client).map_err(|message| self.lost(&format!("{} {message}", client.name())))
    }
}

impl OtherMachines for WorkerPool {
    /// Returns the peak bytes of arrays that each worker has reported.
    fn peaks(&self) -> Vec<u64> {
        self.peaks.iter().map(|peak| peak.load(Ordering::Relaxed)).collect()
    }

    /// Waits until all workers have computed the passes that they have issued. MLX may send on numbers that were never received, so the
    /// results of a pass are valid only after that.
    fn wait(&self) -> Result<()> {
        for place in 0..self.count() {
            while self.pending[place].load(Ordering::Relaxed) > 0 {
                match self.of(place, WorkerClient::receive)?.0 {
                    Reply::Computed => self.record_computed(place)?,
                    _ => return Err(self.malformed(place)),
                }
            }
        }
        Ok(())
    }

    /// Reports that this machine cannot continue, unless the loss of a worker is reported meanwhile, which may be the reason.
    fn fail(&self, error: &str) -> Error {
        std::thread::sleep(ERROR_GRACE);
        self.lost(&format!("rank 0 could not continue: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::distributed::fake_worker::{FakeWorker, HEARTBEAT_TIMEOUT, SOON};

    /// Waits for the second of two passes, of which the worker computes the first before the second is issued. It then sends `last`.
    fn end_of_a_pass(last: Reply) -> Result<()> {
        let (mut client, _) = FakeWorker::start::<()>(1, move |mut connection, _| {
            connection.trust(HEARTBEAT_TIMEOUT).expect("a thread");
            let advanced = Reply::Advanced { states: Vec::new(), peak: 0 };
            for reply in [&advanced, &Reply::Computed, &advanced, &last] {
                connection.send(reply, &[]).expect("rank 0 reads");
            }
            thread::sleep(SOON);
        });
        client.greet().expect("it is there");
        let pool = WorkerPool::new(vec![client], vec![SavedLayers::default()], Arc::new(|_| ()));
        for _ in 0..2 {
            pool.report(0, 0).expect("a pass is issued");
        }
        pool.wait()
    }

    #[test]
    fn a_pass_is_valid_once_a_worker_has_computed_it() {
        end_of_a_pass(Reply::Computed).expect("it is computed");
        let refused = Reply::Refused { message: "could not continue: why".into(), busy: false };
        let error = end_of_a_pass(refused).expect_err("it is not computed").to_string();
        assert!(error.contains("rank 1 (") && error.contains("why"), "{error}");
    }
}
