//! Loads a model on several machines: connects to the workers, divides the model, loads this machine's share and waits for the others.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::background::OnLoss;
use super::divided::{Divided, widest};
use super::group::{self, RankGroup};
use super::group_backend::GroupBackend;
use super::group_start::GroupStart;
use super::loading::{Loading, failed};
use super::machines::Machines;
use super::message::LoadRequest;
use super::parallel::Parallel;
use super::pipeline::PipelineModel;
use super::plan;
use super::rank_zero::RankZero;
use super::ring_links::RingLinks;
use super::tensor::TensorModel;
use super::worker_client::{Refusal, WorkerClient};
use super::worker_pool::WorkerPool;
use super::workers::Workers;
use crate::adapter::Adapter;
use crate::error::{Error, Result};
use crate::model::{Decoder, Model};
use crate::weights::{Progress, Shard, Shared};

/// The pause between attempts to connect to a worker.
const RETRY: Duration = Duration::from_millis(250);

/// A model on several machines without and with each adapter, and its MTP head, which is on this one: `None` if it has none or it was not
/// requested.
type DividedModels = (Vec<Box<dyn Model>>, Option<Result<Box<dyn Model>>>);

/// Loads the model in `folder` on this machine and on the workers. `on_loss` is called from another thread when a worker is lost, and this
/// process then has to end.
pub(crate) fn load(
    folder: &Path,
    workers: &Workers,
    here: &RankZero,
    on_loss: &OnLoss,
    progress: Progress,
) -> Result<DividedModels> {
    let RankZero { policy, budget, .. } = *here;
    group::expect_possible()?;
    let divided =
        Divided::open(folder, policy)?.with_draft(here.draft_bytes).with_adapters(&here.adapters)?;
    let start = GroupStart::of_this_process(workers);
    let mut clients: Vec<WorkerClient> = (workers.addresses.iter().enumerate())
        .map(|(place, address)| {
            let (rank, timeout) = (place + 1, workers.heartbeat_timeout);
            WorkerClient::new(address, rank, &workers.key, timeout, Some(Arc::clone(on_loss)))
                .with_group(start)
        })
        .collect();
    let until = Instant::now() + workers.connect_timeout;
    let mut budgets = vec![budget];
    for client in &mut clients {
        budgets.push(greet(client, until)?);
    }
    let shares = plan::shares(&divided, workers.parallel, &budgets)?;
    let identity = format!("{:032x}", divided.identity()?);
    let adapters = here.adapters.iter().map(|folder| adapter_identity(folder)).collect::<Result<Vec<_>>>()?;
    let group_file = group_file(workers, &clients)?;
    let parts = shares[1..].iter().enumerate().map(|(place, share)| LoadRequest {
        identity: identity.clone(),
        adapters: adapters.clone(),
        rank: place + 1,
        ranks: shares.len(),
        parallel: workers.parallel,
        layers: share.part.layers.clone(),
        floats: policy.floats,
        keep_packed: policy.keep_packed,
        backend: workers.backend,
        group_file: group_file.clone(),
    });
    let parts: Vec<LoadRequest> = parts.collect();
    let mut loading = Loading::begin(&mut clients, &parts)?;
    let group = Arc::new(join(start, group_file.clone(), || loading.look(RETRY / 10), RETRY / 10)?);
    let shard = || Shard { rank: 0, ranks: shares.len(), all_reduce: Arc::clone(&group) as _ };
    let shard = (workers.parallel == Parallel::Tensor).then(shard);
    let mut own_bytes = 0;
    let watch = &mut |read, total| {
        own_bytes = total;
        progress(read, total);
        loading.poll_if_due()
    };
    let modules = Shared::default();
    let locals = divided.load(&shares[0].part, shard, &modules, watch)?;
    let mtp = if here.with_mtp { divided.load_mtp(&modules).transpose() } else { None };
    // Without reports, this process would count as stuck.
    let loaded = loading.wait(|| progress(own_bytes, own_bytes))?;
    for client in &clients {
        client.report_loss().map_err(|message| failed(client, &message))?;
    }
    watch_ring(workers.backend, &group_file, &clients, on_loss)?;
    let footprint = widest(&shares).unwrap_or(divided.spec().footprint);
    let saved_layers = loaded.iter().map(|worker| worker.saved_layers).collect();
    let pool = Arc::new(WorkerPool::new(clients, saved_layers, Arc::clone(on_loss)));
    let machines = Arc::new(Machines { divided, pool, group, footprint, loaded });
    let ranges: Vec<_> = shares.into_iter().map(|share| share.part.layers).collect();
    let model = |(adapter, local): (usize, Decoder)| -> Box<dyn Model> {
        let machines = Arc::clone(&machines);
        match workers.parallel {
            Parallel::Tensor => Box::new(TensorModel::new(machines, local, adapter)),
            Parallel::Pipeline => Box::new(PipelineModel::new(machines, (local, adapter), ranges.clone())),
        }
    };
    Ok((locals.into_iter().enumerate().map(model).collect(), mtp))
}

/// Returns the number that folders with the same adapter share, in hexadecimal.
pub(super) fn adapter_identity(folder: &Path) -> Result<String> {
    Ok(format!("{:032x}", Adapter::open(folder)?.identity()?))
}

/// Reports the end of a connection of the ring, also while the engine waits within MLX.
fn watch_ring(backend: GroupBackend, file: &str, clients: &[WorkerClient], on_loss: &OnLoss) -> Result<()> {
    let names: Vec<String> = clients.iter().map(WorkerClient::name).collect();
    let on_loss = Arc::clone(on_loss);
    let report = move |rank: usize| {
        on_loss(&format!("rank 0 lost its connection to {} in the ring", names[rank - 1]));
    };
    RingLinks::find(backend, file, 0).watch(report).map_err(Error::Distributed)
}

/// Returns the text of MLX's file that describes the group; empty if the backend reads none.
pub(super) fn group_file(workers: &Workers, clients: &[WorkerClient]) -> Result<String> {
    match workers.backend {
        GroupBackend::Ring => group::ring_file(&group_addresses(clients)?),
        GroupBackend::Jaccl => Ok(workers.rdma.clone().unwrap_or_default()),
        GroupBackend::Auto | GroupBackend::Nccl | GroupBackend::Mpi => Ok(String::new()),
    }
}

/// Returns the addresses of the ring, in the order of ranks.
fn group_addresses(clients: &[WorkerClient]) -> Result<Vec<String>> {
    let no_address = |client: &WorkerClient| failed(client, "has no free IPv4 address, which MLX needs");
    // The last rank connects to the first.
    let own = clients.last().and_then(WorkerClient::own_address).and_then(group::free_address);
    let own =
        own.ok_or_else(|| Error::Distributed("rank 0 has no free IPv4 address, which MLX needs".into()));
    let others =
        clients.iter().map(|client| client.group_address().cloned().ok_or_else(|| no_address(client)));
    std::iter::once(own).chain(others).collect()
}

/// Joins the group. Meanwhile calls `look`, which fails when a worker refuses or is lost, after each pause.
pub(super) fn join(
    start: GroupStart,
    file: String,
    mut look: impl FnMut() -> Result<()>,
    pause: Duration,
) -> Result<RankGroup> {
    let joining = std::thread::spawn(move || group::join(start.backend, &file, 0, start.ranks));
    while !joining.is_finished() {
        look()?;
        std::thread::sleep(pause);
    }
    joining.join().map_err(|_| Error::Internal("joining a group in MLX panicked".into()))?
}

/// Connects to a worker, which may still be starting, until the deadline.
pub(super) fn greet(client: &mut WorkerClient, until: Instant) -> Result<u64> {
    let mut was_reported = false;
    loop {
        match client.greet() {
            Ok(budget) => return Ok(budget),
            Err(Refusal { is_transient: true, message }) if Instant::now() < until => {
                if !std::mem::replace(&mut was_reported, true) {
                    let seconds = until.saturating_duration_since(Instant::now()).as_secs_f64();
                    tracing::warn!("{} {message}; retrying for up to {seconds:.0} s", client.name());
                }
                std::thread::sleep(RETRY);
            }
            Err(refusal) => return Err(failed(client, &refusal.message)),
        }
    }
}
