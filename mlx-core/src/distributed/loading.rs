//! Workers that load their parts while rank 0 loads its own. Invariant: one that refuses, or that is lost, ends the loading of all.

use std::time::{Duration, Instant};

use mlx_files::size;

use super::message::{Loaded, Part};
use super::worker_client::{Refusal, WorkerClient};
use crate::error::{Error, Result};

/// How often each worker is looked at while this machine has other work.
const LOOK: Duration = Duration::from_secs(1);

/// How long a worker is looked at where there is nothing else to do.
const WAIT: Duration = Duration::from_millis(250);

/// How often the log says who is waited for.
const REPORT: Duration = Duration::from_secs(10);

/// Workers that were asked to load these parts.
pub(super) struct Loading<'a> {
    clients: &'a mut [WorkerClient],
    parts: &'a [Part],
    /// What those said that are ready.
    loaded: Vec<Option<Loaded>>,
    looked: Instant,
}

impl<'a> Loading<'a> {
    /// Has workers that were greeted load their parts.
    pub(super) fn begin(clients: &'a mut [WorkerClient], parts: &'a [Part]) -> Result<Self> {
        for (client, part) in clients.iter_mut().zip(parts) {
            client.load(part).map_err(|message| failed(client, &message))?;
        }
        let loaded = vec![None; clients.len()];
        let mut loading = Self { clients, parts, loaded, looked: Instant::now() };
        // A refusal comes at once.
        loading.look(WAIT)?;
        Ok(loading)
    }

    /// Looks at each worker, if that was not done just now.
    pub(super) fn look_sometimes(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.look(Duration::ZERO)
    }

    /// Waits until all are ready.
    pub(super) fn wait(mut self) -> Result<Vec<Loaded>> {
        let mut reported = Instant::now();
        while self.loaded.iter().any(Option::is_none) {
            self.look(WAIT)?;
            if reported.elapsed() >= REPORT {
                self.report();
                reported = Instant::now();
            }
        }
        Ok(self.loaded.into_iter().flatten().collect())
    }

    /// Looks at each worker, for so long at those that are not ready.
    fn look(&mut self, wait: Duration) -> Result<()> {
        for ((client, part), loaded) in self.clients.iter_mut().zip(self.parts).zip(&mut self.loaded) {
            let outcome = match loaded {
                Some(_) => client.look_idle().map_err(Refusal::from),
                None => client.wait(part, Instant::now() + wait).map(|found| *loaded = found),
            };
            outcome.map_err(|refusal| failed(client, &refusal.message))?;
        }
        self.looked = Instant::now();
        Ok(())
    }

    /// Writes who is not ready into the log.
    fn report(&self) {
        for (client, _) in self.clients.iter().zip(&self.loaded).filter(|(_, loaded)| loaded.is_none()) {
            let [read, total] = client.read().unwrap_or_default().map(size);
            tracing::info!(worker = client.name(), read, total, "a worker that reads its part is waited for");
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

    /// How loading ends while this machine is still at work, and after how long, if the worker does this once it was asked.
    fn end(work: impl Fn(Connection) + Send + 'static) -> (String, Duration) {
        let (client, _) = FakeWorker::start::<()>(1, move |mut connection, _| {
            asked_to_load(&mut connection);
            // Not at once.
            thread::sleep(2 * WAIT);
            work(connection);
        });
        let (mut clients, parts) = ([client], [part()]);
        clients[0].greet().expect("it is there");
        let begun = Instant::now();
        let mut loading = Loading::begin(&mut clients, &parts).expect("it is asked");
        loop {
            assert!(begun.elapsed() < SOON, "it goes on");
            if let Err(error) = loading.look_sometimes() {
                return (error.to_string(), begun.elapsed());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_worker_that_fails_ends_the_loading_of_rank_0() {
        let (error, time) = end(|connection| {
            let refused = Reply::Refused { message: "cannot load its part: why".into(), busy: false };
            connection.send(&refused, &[]).expect("rank 0 reads");
            thread::sleep(HEARTBEAT_TIMEOUT / 2);
        });
        assert!(error.contains("rank 1 (") && error.contains("cannot load its part: why"), "{error}");
        assert!(time < 3 * LOOK, "after {time:?}");
        let (error, time) = end(drop);
        assert!(error.contains("rank 1 (") && error.contains("closed the connection"), "{error}");
        assert!(time < 3 * LOOK, "after {time:?}");
        let (error, time) = end(|_connection| thread::sleep(SOON));
        assert!(error.contains("rank 1 (") && error.contains("was silent for 0.5 s"), "{error}");
        assert!(time < 4 * LOOK, "after {time:?}");
        // One that is ready has to stay.
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
                thread::sleep(WAIT);
            }
            connection.send(&ready(), &[]).expect("rank 0 reads");
            thread::sleep(SOON);
        });
        let (mut clients, parts) = ([client], [part()]);
        clients[0].greet().expect("it is there");
        let mut loading = Loading::begin(&mut clients, &parts).expect("it is asked");
        assert_eq!(loading.clients[0].read().map(|it| it[1]), Some(3));
        let begun = Instant::now();
        while begun.elapsed() < 2 * LOOK {
            loading.look_sometimes().expect("it is there");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(loading.loaded[0].is_some());
        assert_eq!(loading.wait().expect("it is there").len(), 1);
    }
}
