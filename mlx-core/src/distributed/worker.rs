//! A worker: it waits for rank 0, loads the part that rank 0 names, and runs it until rank 0 leaves. Its weights stay; states go with
//! the connection.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::connection::{Connection, Outcome};
use super::divided::{Divided, Share};
use super::key::{Key, are_equal, nonce};
use super::line::Line;
use super::message::{Loaded, PROTOCOL, Part, Reply, Request, VERSION};
use super::parallel::Parallel;
use super::stage::Stage;
use super::workers::TIMEOUT_RANGE;
use crate::array;
use crate::backend::{Backend, default_memory_budget};
use crate::error::{Error, Result};
use crate::folder::expect_folder;
use crate::freed::freed;
use crate::human_bytes::size;
use crate::model::Model;
use crate::weights::{Exchange, Shard, WeightPolicy};
use crate::wired::Wired;

/// How long each step of the greeting may take.
const GREETING: Duration = Duration::from_secs(5);

/// How long a worker listens before it looks whether it is to end.
const TURN: Duration = Duration::from_millis(100);

/// How often a worker says how far it has read.
const REPORT: Duration = Duration::from_secs(1);

/// What a worker tells the program around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// Rank 0 has come.
    Joined {
        /// Its address.
        from: String,
    },
    /// Weights are being read.
    Loading {
        /// Bytes so far.
        read: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Its part is there.
    Ready {
        /// This worker's rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// How the model is divided.
        parallel: Parallel,
        /// The first layer that it has, or has a part of, and the one behind the last.
        layers: [usize; 2],
        /// Bytes of the weights on the device.
        weight_bytes: u64,
    },
    /// Rank 0 has left, or was sent away: why.
    Left {
        /// Why.
        reason: String,
    },
}

/// A worker of a model in a folder.
pub struct Worker {
    folder: PathBuf,
    key: Key,
    budget: u64,
    backend: Backend,
    /// What was loaded, and the layers.
    loaded: Option<(Part, Loaded, Stage)>,
    line: Arc<Line>,
    _wired: Wired,
}

impl Worker {
    /// A worker that takes up to so many bytes, or a share of the machine's memory. Call this on the thread that calls [`serve`](Self::serve).
    ///
    /// # Errors
    /// The folder has no model.
    pub fn new(
        folder: &Path,
        key: Key,
        memory_budget: Option<u64>,
        backend: Option<Backend>,
    ) -> Result<Self> {
        expect_folder(folder)?;
        let backend = backend.map_or_else(Backend::detect, Ok)?;
        let budget = memory_budget.map_or_else(default_memory_budget, Ok)?;
        array::limit_freed_memory(freed(budget))?;
        let wired = Wired::hold(budget - freed(budget));
        Ok(Self {
            folder: folder.to_path_buf(),
            key,
            budget,
            backend,
            loaded: None,
            line: Arc::default(),
            _wired: wired,
        })
    }

    /// Works for any rank 0 that has the key, one at a time, until `end` is set.
    pub fn serve(
        &mut self,
        listener: TcpListener,
        end: &Arc<AtomicBool>,
        mut tell: impl FnMut(WorkerEvent),
    ) -> Result<()> {
        let cannot =
            |error: std::io::Error| Error::Distributed(format!("connections cannot be taken: {error}"));
        let (found, streams) = sync_channel(1);
        let (is_busy, is_over) = (Arc::new(AtomicBool::new(false)), Arc::clone(end));
        let busy = Arc::clone(&is_busy);
        listener.set_nonblocking(true).map_err(cannot)?;
        let accept = move || accept(&listener, &found, &busy, &is_over);
        std::thread::Builder::new().name("accept".into()).spawn(accept).map_err(cannot)?;
        while !end.load(Ordering::Relaxed) {
            let Ok(stream) = streams.recv_timeout(TURN) else { continue };
            let reason = self.work_for(stream, end, &mut tell);
            self.line.hang_up();
            if let Some((.., stage)) = &mut self.loaded {
                stage.clear();
            }
            tell(WorkerEvent::Left { reason });
            is_busy.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Works for one rank 0 until it leaves; gives the reason.
    fn work_for(
        &mut self,
        stream: TcpStream,
        end: &AtomicBool,
        tell: &mut impl FnMut(WorkerEvent),
    ) -> String {
        let from = stream.peer_addr().map_or_else(|_| "an unknown address".into(), |it| it.to_string());
        match self.greet(stream) {
            Ok(connection) => self.line.connect(connection),
            Err(error) => return format!("{from} {error}"),
        }
        tell(WorkerEvent::Joined { from: from.clone() });
        loop {
            if end.load(Ordering::Relaxed) {
                return "this worker ends".into();
            }
            let outcome = match self.line.receive(Instant::now() + TURN) {
                Ok(None) => continue,
                Ok(Some((Request::Load(part), _))) => self.load(&part, tell),
                Ok(Some((request, payload))) => self.answer(&request, &payload),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                return format!("{from} {error}");
            }
        }
    }

    /// Lets rank 0 in if it has the key and the version.
    fn greet(&self, stream: TcpStream) -> Outcome<Connection> {
        stream.set_nonblocking(false).map_err(|error| error.to_string())?;
        let mut connection = Connection::new(stream, GREETING)?;
        let ours = nonce()?;
        let hello = Reply::Hello { protocol: PROTOCOL, version: VERSION.to_owned(), nonce: ours.clone() };
        connection.send(&hello, &[])?;
        let (request, _) = connection.expect(GREETING)?;
        let Request::Join { protocol, version, nonce: theirs, proof, silence } = request else {
            return refuse(&connection, "did not greet");
        };
        if protocol != PROTOCOL || version != VERSION {
            return refuse(
                &connection,
                &format!(
                    "is version {version} (protocol {protocol}), and the worker is {VERSION} (protocol {PROTOCOL}); install the same version"
                ),
            );
        }
        if !are_equal(&proof, &self.key.proof("rank 0", [&ours, &theirs])) {
            return refuse(&connection, "does not accept the key: give both sides the same key file");
        }
        let proof = self.key.proof("worker", [&ours, &theirs]);
        connection.send(&Reply::Welcome { proof, budget: self.budget }, &[])?;
        let (least, most) = TIMEOUT_RANGE.into_inner();
        connection.trust(Duration::from_millis(silence).clamp(least, most))?;
        Ok(connection)
    }

    /// Loads a part, unless it is there.
    fn load(&mut self, part: &Part, tell: &mut impl FnMut(WorkerEvent)) -> Outcome<()> {
        if self.loaded.as_ref().is_none_or(|loaded| loaded.0 != *part) {
            // Two parts would not fit.
            self.loaded = None;
            match self.read(part, tell) {
                Ok((loaded, stage)) => self.loaded = Some((part.clone(), loaded, stage)),
                Err(error) => return self.refuse(&format!("cannot load its part: {error}")),
            }
        }
        let Some((_, loaded, _)) = &self.loaded else { return Err("has no part".into()) };
        let layers = [part.layers.start, part.layers.end];
        let Part { rank, ranks, parallel, .. } = *part;
        tell(WorkerEvent::Ready { rank, ranks, parallel, layers, weight_bytes: loaded.weight_bytes });
        self.line.send(&Reply::Ready(loaded.clone()), &[])
    }

    fn read(&self, part: &Part, tell: &mut impl FnMut(WorkerEvent)) -> Result<(Loaded, Stage)> {
        let Part { floats, keep_packed, .. } = *part;
        let policy = WeightPolicy { floats, keep_packed, backend: self.backend };
        let divided = Divided::open(&self.folder, policy)?;
        if format!("{:032x}", divided.identity()?) != part.identity {
            let message = "is not the model that rank 0 has: config.json or the tensors differ";
            return Err(Error::file(&self.folder, message));
        }
        let own = share_of(&divided, part)?;
        let (room, weights) = (self.budget - freed(self.budget), own.weight_bytes);
        if weights >= room {
            let message = format!("is {}; {} take {}", size(self.budget), in_words(part), size(weights));
            return Err(Error::option("memory_budget", message));
        }
        let mut told = Instant::now();
        let progress = &mut |read, total| {
            if told.elapsed() > REPORT {
                told = Instant::now();
                tell(WorkerEvent::Loading { read, total });
                // If rank 0 has gone, the next message meets it.
                self.line.send(&Reply::Loading { read, total }, &[]).ok();
            }
        };
        let exchange = Arc::clone(&self.line) as Arc<dyn Exchange>;
        let shard = || Shard { rank: part.rank, ranks: part.ranks, exchange };
        let shard = (part.parallel == Parallel::Tensor).then(shard);
        let decoder = divided.load(&own.part, shard, progress)?;
        let spec = decoder.spec();
        let weight_bytes = spec.weight_bytes;
        let fingerprint = format!("{:032x}", spec.fingerprint);
        let loaded = Loaded { weight_bytes, room: room.saturating_sub(weight_bytes), fingerprint };
        Ok((loaded, Stage::new(decoder, part.layers.clone())))
    }

    fn answer(&mut self, request: &Request, payload: &[u8]) -> Outcome<()> {
        let Some((.., stage)) = &mut self.loaded else { return self.refuse("has loaded nothing yet") };
        let (reply, rows) = stage.answer(request, payload);
        self.line.send(&reply, &rows)
    }

    /// Sends rank 0 away.
    fn refuse<T>(&self, message: &str) -> Outcome<T> {
        self.line.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
        Err(format!("was sent away: {message}"))
    }
}

/// What this part is, unless it is none that a worker can have.
fn share_of(divided: &Divided, part: &Part) -> Result<Share> {
    let Part { rank, ranks, parallel, layers, .. } = part;
    let all = 0..divided.spec().num_layers;
    let is_right = match parallel {
        Parallel::Pipeline => layers.start > 0 && layers.start < layers.end && layers.end <= all.end,
        Parallel::Tensor => (1..*ranks).contains(rank) && *layers == all,
    };
    match parallel {
        _ if !is_right => Err(Error::Distributed(format!("{layers:?} are no layers of a worker"))),
        Parallel::Pipeline => Ok(divided.stage(layers)),
        Parallel::Tensor => divided.shard(*rank, *ranks),
    }
}

fn in_words(part: &Part) -> String {
    match part.parallel {
        Parallel::Pipeline => format!("layers {} to {}", part.layers.start, part.layers.end - 1),
        Parallel::Tensor => format!("its parts of {} layers", part.layers.len()),
    }
}

/// Sends away who has not been let in.
fn refuse<T>(connection: &Connection, message: &str) -> Outcome<T> {
    connection.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
    Err(format!("was sent away: {message}"))
}

/// Takes connections and hands over one at a time; the others learn that there is one already.
fn accept(listener: &TcpListener, found: &SyncSender<TcpStream>, is_busy: &AtomicBool, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) if is_busy.swap(true, Ordering::AcqRel) => {
                let Ok(connection) = Connection::new(stream, REPORT) else { continue };
                let message = "works for another rank 0 already".to_owned();
                connection.send(&Reply::Refused { message, busy: true }, &[]).ok();
            }
            Ok((stream, _)) => {
                if found.send(stream).is_err() {
                    return;
                }
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
