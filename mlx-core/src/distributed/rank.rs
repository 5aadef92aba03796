//! A worker's rank: loads its share of the model for one rank 0 and runs it until rank 0 disconnects.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mlx_files::size;

use super::admitted::Admitted;
use super::background::{Background, OnLoss};
use super::connection::{Connection, Outcome, write_message};
use super::divided::{Divided, Share};
use super::group;
use super::load::adapter_identity;
use super::measure;
use super::message::{LoadRequest, Loaded, Reply, Request};
use super::parallel::Parallel;
use super::ring_links::RingLinks;
use super::stage::Stage;
use super::worker_event::WorkerEvent;
use crate::array;
use crate::backend::{Backend, default_memory_budget};
use crate::error::{Error, Result};
use crate::freed::cache_limit;
use crate::model::{Decoder, Model};
use crate::weights::{Shard, Shared, WeightPolicy};
use crate::wired::Wired;

/// The interval at which a waiting rank checks whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The interval of loading progress reports.
const REPORT: Duration = Duration::from_secs(1);

/// A rank of the model in a folder, for one rank 0. Its memory is free once it is dropped.
pub struct Rank {
    folder: PathBuf,
    /// The folders of adapters that rank 0 may use.
    adapters: Vec<PathBuf>,
    budget: u64,
    backend: Backend,
    _wired: Wired,
}

impl Rank {
    /// Creates a rank with this memory budget in bytes; the default is a fraction of the machine's memory. Call it on the thread that
    /// calls [`serve`](Self::serve).
    pub fn new(
        folder: &Path,
        adapters: Vec<PathBuf>,
        memory_budget: Option<u64>,
        backend: Option<Backend>,
    ) -> Result<Self> {
        let detected = Backend::detect()?;
        let backend = backend.unwrap_or(detected);
        let budget = memory_budget.map_or_else(default_memory_budget, Ok)?;
        array::limit_freed_memory(cache_limit(budget))?;
        let wired = Wired::hold(budget - cache_limit(budget));
        Ok(Self { folder: folder.to_path_buf(), adapters, budget, backend, _wired: wired })
    }

    /// Works for rank 0 until it leaves or `end` is set. Returns the reason. `on_loss` is called with it from another thread, at once,
    /// when rank 0 is lost: this thread may wait within MLX for ever.
    pub fn serve(
        self,
        admitted: Admitted,
        end: &AtomicBool,
        on_event: &mut dyn FnMut(WorkerEvent),
        on_loss: OnLoss,
    ) -> String {
        let Admitted { stream, from, heartbeat_timeout, .. } = admitted;
        let rank_zero = from.clone();
        let on_loss: OnLoss = Arc::new(move |reason: &str| on_loss(&format!("{rank_zero} {reason}")));
        let connected = Connection::new(stream, heartbeat_timeout).and_then(|mut connection| {
            connection.trust(heartbeat_timeout)?;
            Background::new(connection, Some(Arc::clone(&on_loss)))
        });
        let outcome = connected.and_then(|server| self.work(&server, end, on_event, &on_loss));
        outcome.map_or_else(|error| format!("{from} {error}"), |()| "this worker is shutting down".into())
    }

    fn work(
        &self,
        server: &Background<Request>,
        end: &AtomicBool,
        on_event: &mut dyn FnMut(WorkerEvent),
        on_loss: &OnLoss,
    ) -> Outcome<()> {
        let mut stage: Option<Stage> = None;
        while !end.load(Ordering::Relaxed) {
            match server.receive(Instant::now() + POLL_INTERVAL)? {
                None => {}
                Some((Request::Load(_), _)) if stage.is_some() => {
                    return refuse(server, "has loaded a share already");
                }
                Some((Request::Load(part), _)) => {
                    stage = Some(self.load(server, &part, on_event)?);
                    watch_ring(server, &part, on_loss)?;
                }
                Some((Request::Echo, payload)) => server.send(&Reply::Echo, &payload)?,
                Some((Request::Measure(request), _)) => match measure::take_part(&request) {
                    Ok(()) => server.send(&Reply::Measured, &[])?,
                    Err(error) => return refuse(server, &format!("could not be measured: {error}")),
                },
                Some((request, payload)) => {
                    let Some(stage) = &mut stage else { return refuse(server, "has loaded no share") };
                    let send = |reply, payload: &[u8]| server.send(&reply, payload);
                    let outcome = stage.answer(&request, &payload, send);
                    // The other ranks wait in the middle of a pass, so none can continue.
                    // Rank 0 must know at once: after an error, MLX may send them numbers that were never computed.
                    outcome?.or_else(|error| refuse(server, &format!("could not continue: {error}")))?;
                }
            }
        }
        Ok(())
    }

    fn load(
        &self,
        server: &Background<Request>,
        part: &LoadRequest,
        on_event: &mut dyn FnMut(WorkerEvent),
    ) -> Outcome<Stage> {
        let found =
            self.survey(part).and_then(|(divided, own)| self.read(server, part, &divided, &own, on_event));
        let (loaded, stage) = match found {
            Ok(loaded) => loaded,
            Err(error) => {
                // Rank 0 may have left.
                server.look()?;
                return refuse(server, &format!("cannot load its share: {error}"));
            }
        };
        let layers = [part.layers.start, part.layers.end];
        let LoadRequest { rank, ranks, parallel, .. } = *part;
        on_event(WorkerEvent::Ready { rank, ranks, parallel, layers, weight_bytes: loaded.weight_bytes });
        server.send(&Reply::Ready(loaded), &[])?;
        Ok(stage)
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
        let divided = divided.with_adapters(&self.used_adapters(&part.adapters)?)?;
        let own = share_of(&divided, part)?;
        if own.weight_bytes >= self.room() {
            let (budget, weights) = (size(self.budget), size(own.weight_bytes));
            let message = format!("is {budget}; {} take {weights}", in_words(part));
            return Err(Error::option("memory_budget", message));
        }
        Ok((divided, own))
    }

    /// Returns the folders of the adapters with these identities, in their order.
    fn used_adapters(&self, identities: &[String]) -> Result<Vec<PathBuf>> {
        let own = self.adapters.iter().map(|folder| Ok((adapter_identity(folder)?, folder)));
        let own = if identities.is_empty() { Vec::new() } else { own.collect::<Result<Vec<_>>>()? };
        let find = |(place, identity): (usize, &String)| {
            let found = own.iter().find(|(own, _)| own == identity).map(|(_, folder)| (*folder).clone());
            let missing = format!(
                "lack the files of adapter {} of rank 0; start this worker with --adapter and a folder with the same files",
                place + 1
            );
            found.ok_or_else(|| Error::option("adapters", missing))
        };
        identities.iter().enumerate().map(find).collect()
    }

    /// The bytes for weights, states and passes.
    fn room(&self) -> u64 {
        self.budget - cache_limit(self.budget)
    }

    fn read(
        &self,
        server: &Background<Request>,
        part: &LoadRequest,
        divided: &Divided,
        own: &Share,
        on_event: &mut dyn FnMut(WorkerEvent),
    ) -> Result<(Loaded, Stage)> {
        let mut reported: Option<Instant> = None;
        let watch = &mut |read, total| {
            if reported.is_some_and(|it| it.elapsed() < REPORT) {
                return Ok(());
            }
            reported = Some(Instant::now());
            on_event(WorkerEvent::Loading { read, total });
            // A worker that waits for a lost rank 0 could not admit the next one.
            let is_there = server.send(&Reply::Loading { read, total }, &[]).and_then(|()| server.look());
            is_there.map_err(|message| Error::Distributed(format!("rank 0 {message}")))
        };
        let group = Arc::new(group::join(part.backend, &part.group_file, part.rank, part.ranks)?);
        let shard = || Shard { rank: part.rank, ranks: part.ranks, all_reduce: Arc::clone(&group) as _ };
        let shard = (part.parallel == Parallel::Tensor).then(shard);
        let decoders = divided.load(&own.part, shard, &Shared::default(), watch)?;
        let specs: Vec<_> = decoders.iter().map(Decoder::spec).collect();
        let base = specs.first().map_or(0, |spec| spec.weight_bytes);
        // A model with an adapter shares the weights of the first one.
        let weight_bytes = base + specs.iter().map(|spec| spec.adapter_bytes(specs[0])).sum::<u64>();
        let fingerprints = specs.iter().map(|spec| format!("{:032x}", spec.fingerprint)).collect();
        let room = self.room().saturating_sub(weight_bytes);
        let stage = Stage::new(decoders, part.layers.clone(), part.parallel == Parallel::Tensor, group);
        let saved_layers = stage.saved_layers();
        Ok((Loaded { weight_bytes, room, saved_layers, fingerprints }, stage))
    }
}

/// Leaves rank 0 when a connection of the ring has ended, also while this thread waits within MLX.
fn watch_ring(server: &Background<Request>, part: &LoadRequest, on_loss: &OnLoss) -> Outcome<()> {
    let (writer, on_loss) = (server.writer(), Arc::clone(on_loss));
    RingLinks::find(part.backend, &part.group_file, part.rank).watch(move |rank| {
        let message = format!("lost its connection to rank {rank} in the ring");
        write_message(&writer, &Reply::Refused { message, busy: false }, &[]).ok();
        on_loss(&format!("waits for this rank, which lost its connection to rank {rank} in the ring"));
    })
}

/// Refuses rank 0.
fn refuse<T>(server: &Background<Request>, message: &str) -> Outcome<T> {
    server.send(&Reply::Refused { message: message.to_owned(), busy: false }, &[]).ok();
    Err(format!("was refused: {message}"))
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
        Parallel::Pipeline => divided.stage(layers),
        Parallel::Tensor => divided.shard(*rank, *ranks),
    }
}

fn in_words(part: &LoadRequest) -> String {
    match part.parallel {
        Parallel::Pipeline => format!("layers {} to {}", part.layers.start, part.layers.end - 1),
        Parallel::Tensor => format!("its shards of {} layers", part.layers.len()),
    }
}
