//! Loads a model on several machines: connects to the workers, divides the model, loads this machine's share and waits for the others.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::divided::{Divided, widest};
use super::loading::{Loading, failed};
use super::message::LoadRequest;
use super::parallel::Parallel;
use super::pipeline::PipelineModel;
use super::plan;
use super::tensor::{PoolAllReduce, TensorModel};
use super::worker_client::{Refusal, WorkerClient};
use super::worker_pool::WorkerPool;
use super::workers::Workers;
use crate::error::Result;
use crate::model::Model;
use crate::weights::{AllReduce, Progress, Shard, WeightPolicy};

/// The pause between attempts to connect to a worker.
const RETRY: Duration = Duration::from_millis(250);

/// Loads the model in `folder` on this machine, within `budget` bytes, and on the workers.
pub(crate) fn load(
    folder: &Path,
    workers: &Workers,
    policy: WeightPolicy,
    budget: u64,
    progress: Progress,
) -> Result<Box<dyn Model>> {
    let divided = Divided::open(folder, policy)?;
    let mut clients: Vec<WorkerClient> = (workers.addresses.iter().enumerate())
        .map(|(place, address)| {
            WorkerClient::new(address, place + 1, &workers.key, workers.heartbeat_timeout)
        })
        .collect();
    let until = Instant::now() + workers.connect_timeout;
    let mut budgets = vec![budget];
    for client in &mut clients {
        budgets.push(greet(client, until)?);
    }
    let shares = plan::shares(&divided, workers.parallel, &budgets)?;
    let identity = format!("{:032x}", divided.identity()?);
    let parts = shares[1..].iter().enumerate().map(|(place, share)| LoadRequest {
        identity: identity.clone(),
        rank: place + 1,
        ranks: shares.len(),
        parallel: workers.parallel,
        layers: share.part.layers.clone(),
        floats: policy.floats,
        keep_packed: policy.keep_packed,
    });
    let parts: Vec<LoadRequest> = parts.collect();
    let mut loading = Loading::begin(&mut clients, &parts)?;
    let sums = Arc::new(PoolAllReduce::default());
    let shard =
        || Shard { rank: 0, ranks: shares.len(), all_reduce: Arc::clone(&sums) as Arc<dyn AllReduce> };
    let shard = (workers.parallel == Parallel::Tensor).then(shard);
    let mut own_bytes = 0;
    let watch = &mut |read, total| {
        own_bytes = total;
        progress(read, total);
        loading.poll_if_due()
    };
    let local = divided.load(&shares[0].part, shard, watch)?;
    // Without reports, this process would count as stuck.
    let ready = loading.wait(|| progress(own_bytes, own_bytes))?;
    let (pool, footprint) = (WorkerPool::new(clients), widest(&shares).unwrap_or(divided.spec().footprint));
    Ok(match workers.parallel {
        Parallel::Tensor => Box::new(TensorModel::new(divided, (local, &sums), footprint, pool, &ready)),
        Parallel::Pipeline => {
            let ranges = shares.into_iter().map(|share| share.part.layers).collect();
            Box::new(PipelineModel::new(divided, local, ranges, footprint, pool, &ready))
        }
    })
}

/// Connects to a worker, which may still be starting, until the deadline.
fn greet(client: &mut WorkerClient, until: Instant) -> Result<u64> {
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
