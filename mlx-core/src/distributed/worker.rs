//! A worker: it admits one rank 0 at a time, and leaves the work for it to a function, which may run it in another process.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::admitted::Admitted;
use super::handshake::{Handshake, HandshakeOutcome};
use super::key::Key;
use super::worker_event::WorkerEvent;
use crate::backend::default_memory_budget;
use crate::error::{Error, Result};
use crate::folder::expect_folder;

/// The interval at which a waiting worker checks whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A worker of a model in a folder.
pub struct Worker {
    handshake: Arc<Handshake>,
}

impl Worker {
    /// Creates a worker with this memory budget in bytes; the default is a fraction of the machine's memory.
    ///
    /// # Errors
    /// If the folder has no model.
    pub fn new(folder: &Path, key: Key, memory_budget: Option<u64>) -> Result<Self> {
        expect_folder(folder)?;
        let budget = memory_budget.map_or_else(default_memory_budget, Ok)?;
        Ok(Self { handshake: Arc::new(Handshake::new(key, budget)) })
    }

    /// Admits any rank 0 that has the key, one at a time, until `end` is set. `work` works for it, in a thread of its own, and returns
    /// the reason why it has left.
    pub fn serve(
        &self,
        listener: TcpListener,
        end: &Arc<AtomicBool>,
        work: impl Fn(Admitted, &mut dyn FnMut(WorkerEvent)) -> String + Sync,
        on_event: impl FnMut(WorkerEvent) + Send,
    ) -> Result<()> {
        let cannot =
            |error: std::io::Error| Error::Distributed(format!("cannot accept connections: {error}"));
        let (found, outcomes) = channel();
        let (handshake, is_over) = (Arc::clone(&self.handshake), Arc::clone(end));
        listener.set_nonblocking(true).map_err(cannot)?;
        let accept = move || handshake.serve(&listener, &found, &is_over);
        std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(cannot)?;
        let on_event = Mutex::new(on_event);
        let hear = |event| (on_event.lock().unwrap_or_else(PoisonError::into_inner))(event);
        let work_for = |admitted: Admitted| {
            hear(WorkerEvent::Joined { from: admitted.from.clone() });
            let reason = work(admitted, &mut |event| hear(event));
            hear(WorkerEvent::Left { reason });
            self.handshake.admit_next();
        };
        std::thread::scope(|scope| {
            while !end.load(Ordering::Relaxed) {
                match outcomes.recv_timeout(POLL_INTERVAL) {
                    Ok(HandshakeOutcome::RankZero(admitted)) => {
                        let run = || work_for(admitted);
                        let thread = std::thread::Builder::new().name("rank".into());
                        if let Err(error) = thread.spawn_scoped(scope, run) {
                            hear(WorkerEvent::Refused { reason: format!("cannot start a thread: {error}") });
                            self.handshake.admit_next();
                        }
                    }
                    Ok(HandshakeOutcome::Refused(reason)) => hear(WorkerEvent::Refused { reason }),
                    Err(_) => {}
                }
            }
        });
        Ok(())
    }
}
