//! A worker: it waits for rank 0, loads the requested share of the model and runs it until rank 0 disconnects. The weights stay loaded
//! between connections; states end with the connection.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use mlx_files::size;

use super::connection::Outcome;
use super::divided::{Divided, Share};
use super::handshake::{Handshake, HandshakeOutcome};
use super::key::Key;
use super::message::{LoadRequest, Loaded, Reply, Request};
use super::parallel::Parallel;
use super::server_connection::ServerConnection;
use super::stage::Stage;
use crate::array;
use crate::backend::{Backend, default_memory_budget};
use crate::error::{Error, Result};
use crate::folder::expect_folder;
use crate::freed::cache_limit;
use crate::model::Model;
use crate::weights::{AllReduce, Shard, WeightPolicy};
use crate::wired::Wired;

/// The interval at which a waiting worker checks whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The interval of loading progress reports.
const REPORT: Duration = Duration::from_secs(1);

/// An event that a worker reports to its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A rank 0 was admitted.
    Joined {
        /// Its address.
        from: String,
    },
    /// The weights are being read.
    Loading {
        /// Bytes read so far.
        read: u64,
        /// Bytes to read in total.
        total: u64,
    },
    /// The worker's share is loaded.
    Ready {
        /// This worker's rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// The way the model is divided.
        parallel: Parallel,
        /// The first layer and the end of the worker's layers (exclusive).
        layers: [usize; 2],
        /// Bytes of the weights on the device.
        weight_bytes: u64,
    },
    /// Rank 0 left, or was refused after it had joined.
    Left {
        /// The reason.
        reason: String,
    },
    /// A connection was closed because the handshake failed.
    Refused {
        /// The peer's address and the reason.
        reason: String,
    },
}

/// A worker of a model in a folder.
pub struct Worker {
    folder: PathBuf,
    handshake: Arc<Handshake>,
    budget: u64,
    backend: Backend,
    /// The loaded share, the report of it, and its layers.
    loaded: Option<(LoadRequest, Loaded, Stage)>,
    server: Arc<ServerConnection>,
    _wired: Wired,
}

impl Worker {
    /// Creates a worker with this memory budget in bytes; the default is a fraction of the machine's memory. Call it on the thread that
    /// calls [`serve`](Self::serve).
    ///
    /// # Errors
    /// If the folder has no model.
    pub fn new(
        folder: &Path,
        key: Key,
        memory_budget: Option<u64>,
        backend: Option<Backend>,
    ) -> Result<Self> {
        expect_folder(folder)?;
        let detected = Backend::detect()?;
        let backend = backend.unwrap_or(detected);
        let budget = memory_budget.map_or_else(default_memory_budget, Ok)?;
        array::limit_freed_memory(cache_limit(budget))?;
        let wired = Wired::hold(budget - cache_limit(budget));
        Ok(Self {
            folder: folder.to_path_buf(),
            handshake: Arc::new(Handshake::new(key, budget)),
            budget,
            backend,
            loaded: None,
            server: Arc::default(),
            _wired: wired,
        })
    }

    /// Works for any rank 0 that has the key, one at a time, until `end` is set.
    pub fn serve(
        &mut self,
        listener: TcpListener,
        end: &Arc<AtomicBool>,
        mut on_event: impl FnMut(WorkerEvent),
    ) -> Result<()> {
        let cannot =
            |error: std::io::Error| Error::Distributed(format!("cannot accept connections: {error}"));
        let (found, outcomes) = channel();
        let (handshake, is_over) = (Arc::clone(&self.handshake), Arc::clone(end));
        listener.set_nonblocking(true).map_err(cannot)?;
        let accept = move || handshake.serve(&listener, &found, &is_over);
        std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(cannot)?;
        while !end.load(Ordering::Relaxed) {
            match outcomes.recv_timeout(POLL_INTERVAL) {
                Ok(HandshakeOutcome::RankZero(connection, from)) => {
                    on_event(WorkerEvent::Joined { from: from.clone() });
                    self.server.connect(connection);
                    let reason = self.work_for(&from, &outcomes, end, &mut on_event);
                    self.server.hang_up();
                    if let Some((.., stage)) = &mut self.loaded {
                        stage.clear();
                    }
                    on_event(WorkerEvent::Left { reason });
                    self.handshake.admit_next();
                }
                Ok(HandshakeOutcome::Refused(reason)) => on_event(WorkerEvent::Refused { reason }),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Serves the connected rank 0 until it leaves; returns the reason.
    fn work_for(
        &mut self,
        from: &str,
        outcomes: &Receiver<HandshakeOutcome>,
        end: &AtomicBool,
        on_event: &mut impl FnMut(WorkerEvent),
    ) -> String {
        loop {
            if end.load(Ordering::Relaxed) {
                return "this worker is shutting down".into();
            }
            // No other rank 0 is admitted meanwhile.
            while let Ok(HandshakeOutcome::Refused(reason)) = outcomes.try_recv() {
                on_event(WorkerEvent::Refused { reason });
            }
            let outcome = match self.server.receive(Instant::now() + POLL_INTERVAL) {
                Ok(None) => continue,
                Ok(Some((Request::Load(part), _))) => self.load(&part, on_event),
                Ok(Some((request, payload))) => self.answer(&request, &payload),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                return format!("{from} {error}");
            }
        }
    }

    /// Loads a share, unless it is already loaded.
    fn load(&mut self, part: &LoadRequest, on_event: &mut impl FnMut(WorkerEvent)) -> Outcome<()> {
        if self.loaded.as_ref().is_none_or(|loaded| loaded.0 != *part) {
            let found = self.survey(part).and_then(|(divided, own)| {
                // Both shares would not fit in memory. A share that is refused leaves the current one loaded.
                self.loaded = None;
                self.read(part, &divided, &own, on_event)
            });
            match found {
                Ok((loaded, stage)) => self.loaded = Some((part.clone(), loaded, stage)),
                Err(error) => {
                    // Rank 0 may have left.
                    self.server.look()?;
                    return self.refuse(&format!("cannot load its share: {error}"));
                }
            }
        }
        let Some((_, loaded, _)) = &self.loaded else { return Err("has loaded no share".into()) };
        let layers = [part.layers.start, part.layers.end];
        let LoadRequest { rank, ranks, parallel, .. } = *part;
        on_event(WorkerEvent::Ready { rank, ranks, parallel, layers, weight_bytes: loaded.weight_bytes });
        self.server.send(&Reply::Ready(loaded.clone()), &[])
    }

    /// Computes a share if it is of the model in this folder and fits in memory.
    fn survey(&self, part: &LoadRequest) -> Result<(Divided, Share)> {
        let LoadRequest { floats, keep_packed, .. } = *part;
        let policy = WeightPolicy { floats, keep_packed, backend: self.backend };
        let divided = Divided::open(&self.folder, policy)?;
        if format!("{:032x}", divided.identity()?) != part.identity {
            let message = "is not the model that rank 0 has: config.json or the tensors differ";
            return Err(Error::file(&self.folder, message));
        }
        let own = share_of(&divided, part)?;
        if own.weight_bytes >= self.room() {
            let (budget, weights) = (size(self.budget), size(own.weight_bytes));
            let message = format!("is {budget}; {} take {weights}", in_words(part));
            return Err(Error::option("memory_budget", message));
        }
        Ok((divided, own))
    }

    /// The bytes for weights, states and passes.
    fn room(&self) -> u64 {
        self.budget - cache_limit(self.budget)
    }

    fn read(
        &self,
        part: &LoadRequest,
        divided: &Divided,
        own: &Share,
        on_event: &mut impl FnMut(WorkerEvent),
    ) -> Result<(Loaded, Stage)> {
        let mut reported: Option<Instant> = None;
        let watch = &mut |read, total| {
            if reported.is_some_and(|it| it.elapsed() < REPORT) {
                return Ok(());
            }
            reported = Some(Instant::now());
            on_event(WorkerEvent::Loading { read, total });
            // A worker that waits for a lost rank 0 could not admit the next one.
            let is_there =
                self.server.send(&Reply::Loading { read, total }, &[]).and_then(|()| self.server.look());
            is_there.map_err(|message| Error::Distributed(format!("rank 0 {message}")))
        };
        let all_reduce = Arc::clone(&self.server) as Arc<dyn AllReduce>;
        let shard = || Shard { rank: part.rank, ranks: part.ranks, all_reduce };
        let shard = (part.parallel == Parallel::Tensor).then(shard);
        let decoder = divided.load(&own.part, shard, watch)?;
        let spec = decoder.spec();
        let weight_bytes = spec.weight_bytes;
        let fingerprint = format!("{:032x}", spec.fingerprint);
        let room = self.room().saturating_sub(weight_bytes);
        let loaded = Loaded { weight_bytes, room, fingerprint };
        Ok((loaded, Stage::new(decoder, part.layers.clone())))
    }

    fn answer(&mut self, request: &Request, payload: &[u8]) -> Outcome<()> {
        let Some((.., stage)) = &mut self.loaded else { return self.refuse("has loaded no share") };
        let (reply, rows) = stage.answer(request, payload);
        self.server.send(&reply, &rows)
    }

    /// Refuses rank 0.
    fn refuse<T>(&self, message: &str) -> Outcome<T> {
        self.server.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
        Err(format!("was refused: {message}"))
    }
}

/// Computes the share of a worker.
fn share_of(divided: &Divided, part: &LoadRequest) -> Result<Share> {
    let LoadRequest { rank, ranks, parallel, layers, .. } = part;
    let all = 0..divided.spec().num_layers;
    let is_right = match parallel {
        Parallel::Pipeline => layers.start > 0 && layers.start < layers.end && layers.end <= all.end,
        Parallel::Tensor => (1..*ranks).contains(rank) && *layers == all,
    };
    match parallel {
        _ if !is_right => Err(Error::Distributed(format!("{layers:?} are not valid layers for a worker"))),
        Parallel::Pipeline => Ok(divided.stage(layers)),
        Parallel::Tensor => divided.shard(*rank, *ranks),
    }
}

fn in_words(part: &LoadRequest) -> String {
    match part.parallel {
        Parallel::Pipeline => format!("layers {} to {}", part.layers.start, part.layers.end - 1),
        Parallel::Tensor => format!("its shards of {} layers", part.layers.len()),
    }
}
