//! Waits for workers that load their shares while rank 0 loads its own. Invariant: a worker that refuses or is lost ends the loading of all.

use std::time::{Duration, Instant};

use mlx_files::size;

use super::message::{LoadRequest, Loaded};
use super::worker_client::{Refusal, WorkerClient};
use crate::error::{Error, Result};

/// The interval at which each worker is checked while this machine loads its own share.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The time to wait for each worker once this machine has loaded.
const POLL_TIMEOUT: Duration = Duration::from_millis(250);

/// The interval of log lines about unfinished workers.
const REPORT: Duration = Duration::from_secs(10);

/// Workers that are loading their shares.
pub(super) struct Loading<'a> {
    clients: &'a mut [WorkerClient],
    /// The reports of the workers that are ready.
    loaded: Vec<Option<Loaded>>,
    looked: Instant,
}

impl<'a> Loading<'a> {
    /// Makes connected workers load their shares.
    pub(super) fn begin(clients: &'a mut [WorkerClient], parts: &[LoadRequest]) -> Result<Self> {
        for (client, part) in clients.iter().zip(parts) {
            client.load(part).map_err(|message| failed(client, &message))?;
        }
        let loaded = vec![None; clients.len()];
        let mut loading = Self { clients, loaded, looked: Instant::now() };
        // A refusal arrives immediately.
        loading.look(POLL_TIMEOUT)?;
        Ok(loading)
    }

    /// Checks each worker if the last check was at least [`POLL_INTERVAL`] ago.
    pub(super) fn poll_if_due(&mut self) -> Result<()> {
        if self.looked.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        self.look(Duration::ZERO)
    }

    /// Waits until all are ready. Calls `on_wait` repeatedly meanwhile.
    pub(super) fn wait(mut self, mut on_wait: impl FnMut()) -> Result<Vec<Loaded>> {
        let mut reported = Instant::now();
        while self.loaded.iter().any(Option::is_none) {
            self.look(POLL_TIMEOUT)?;
            on_wait();
            if reported.elapsed() >= REPORT {
                self.report();
                reported = Instant::now();
            }
        }
        Ok(self.loaded.into_iter().flatten().collect())
    }

    /// Checks each worker; waits up to `wait` for each that is not ready.
    pub(super) fn look(&mut self, wait: Duration) -> Result<()> {
        for (client, loaded) in self.clients.iter_mut().zip(&mut self.loaded) {
            let outcome = match loaded {
                Some(_) => client.check_idle().map_err(Refusal::from),
                None => client.wait(Instant::now() + wait).map(|found| *loaded = found),
            };
            outcome.map_err(|refusal| failed(client, &refusal.message))?;
        }
        self.looked = Instant::now();
        Ok(())
    }

    /// Logs the progress of the workers that are not ready.
    fn report(&self) {
        for (client, _) in self.clients.iter().zip(&self.loaded).filter(|(_, loaded)| loaded.is_none()) {
            let [read, total] = client.read().unwrap_or_default().map(size);
            tracing::info!(worker = client.name(), read, total, "waiting for a worker that loads its share");
        }
    }
}

pub(super) fn failed(client: &WorkerClient, message: &str) -> Error {
    Error::Distributed(format!("{} {message}", client.name()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::distributed::connection::Connection;
    use crate::distributed::fake_worker::{FakeWorker, HEARTBEAT_TIMEOUT, SOON, asked_to_load, part, ready};
    use crate::distributed::message::Reply;

    /// Returns how loading ends while this machine still loads, and the time it took, if the worker does `work` after the request.
    fn end(work: impl Fn(Connection) + Send + 'static) -> (String, Duration) {
        let (client, _) = FakeWorker::start::<()>(1, move |mut connection, _| {
            asked_to_load(&mut connection);
            // Gives rank 0 time to start its own loading.
            thread::sleep(2 * POLL_TIMEOUT);
            work(connection);
        });
        let (mut clients, parts) = ([client], [part()]);
        clients[0].greet().expect("it is there");
        let begun = Instant::now();
        let mut loading = Loading::begin(&mut clients, &parts).expect("it is asked");
        loop {
            assert!(begun.elapsed() < SOON, "it goes on");
            if let Err(error) = loading.poll_if_due() {
                return (error.to_string(), begun.elapsed());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_worker_that_fails_ends_the_loading_of_rank_0() {
        let (error, time) = end(|connection| {
            let refused = Reply::Refused { message: "cannot load its share: why".into(), busy: false };
            connection.send(&refused, &[]).expect("rank 0 reads");
            thread::sleep(HEARTBEAT_TIMEOUT / 2);
        });
        assert!(error.contains("rank 1 (") && error.contains("cannot load its share: why"), "{error}");
        assert!(time < 3 * POLL_INTERVAL, "after {time:?}");
        let (error, time) = end(drop);
        assert!(error.contains("rank 1 (") && error.contains("closed the connection"), "{error}");
        assert!(time < 3 * POLL_INTERVAL, "after {time:?}");
        let (error, time) = end(|_connection| thread::sleep(SOON));
        assert!(error.contains("rank 1 (") && error.contains("was silent for 0.5 s"), "{error}");
        // Rank 0 grants a worker some seconds to start a process.
        assert!(time < 8 * POLL_INTERVAL, "after {time:?}");
        // A ready worker that disconnects is an error, too.
        let (error, _) = end(|connection| {
            connection.send(&ready(), &[]).expect("rank 0 reads");
            thread::sleep(HEARTBEAT_TIMEOUT / 2);
        });
        assert!(error.contains("closed the connection"), "{error}");
    }

    #[test]
    fn what_is_ready_stays_so() {
        let (client, _) = FakeWorker::start::<()>(1, move |mut connection, _| {
            asked_to_load(&mut connection);
            connection.trust(HEARTBEAT_TIMEOUT).expect("a thread");
            for read in 1..=3 {
                connection.send(&Reply::Loading { read, total: 3 }, &[]).expect("rank 0 reads");
                thread::sleep(POLL_TIMEOUT);
            }
            connection.send(&ready(), &[]).expect("rank 0 reads");
            thread::sleep(SOON);
        });
        let (mut clients, parts) = ([client], [part()]);
        clients[0].greet().expect("it is there");
        let mut loading = Loading::begin(&mut clients, &parts).expect("it is asked");
        assert_eq!(loading.clients[0].read().map(|it| it[1]), Some(3));
        let begun = Instant::now();
        while begun.elapsed() < 2 * POLL_INTERVAL {
            loading.poll_if_due().expect("it is there");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(loading.loaded[0].is_some());
        assert_eq!(loading.wait(|| ()).expect("it is there").len(), 1);
    }
}
