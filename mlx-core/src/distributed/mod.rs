//! One model on several machines: pipeline or tensor parallelism (decision 0072). Rank 0 runs the engine and holds the embedding and the
//! head. Workers hold the later layers (pipeline) or a shard of every layer (tensor) and serve requests of rank 0 over TCP. Hidden states and
//! sums go through a group in MLX.

mod admitted;
mod background;
mod connection;
mod divided;
#[cfg(test)]
mod fake_worker;
mod frame;
mod group;
mod group_backend;
mod group_start;
mod handshake;
mod hosts;
mod key;
mod link;
mod load;
mod loading;
mod machines;
mod measure;
mod message;
mod parallel;
mod pass;
mod pipeline;
mod plan;
mod rank;
mod rank_zero;
mod remote_state;
mod ring_links;
mod saved_layers;
mod split;
mod stage;
mod tensor;
mod worker;
mod worker_client;
mod worker_event;
mod worker_pool;
mod workers;

pub use admitted::Admitted;
pub use background::OnLoss;
pub use group_backend::GroupBackend;
pub use group_start::GroupStart;
pub use hosts::{Host, PORT};
pub use key::Key;
pub use link::{Link, measure_links};
pub(crate) use load::load;
pub use measure::{Exchange, GroupSpeed, measure_group};
pub use parallel::Parallel;
pub(crate) use plan::plan;
pub use plan::{Plan, Share};
pub use rank::Rank;
pub(crate) use rank_zero::RankZero;
pub use worker::Worker;
pub use worker_event::WorkerEvent;
pub use workers::{HEARTBEAT_TIMEOUT, TIMEOUT_RANGE, Workers};
