//! One model on several machines. Rank 0 has the embedding, the head and the engine, and the first layers or a part of all of them; workers
//! have the layers behind those or their own part of all, and answer rank 0 over TCP (decisions 0041 and 0042).

mod connection;
mod divided;
#[cfg(test)]
mod fake_worker;
mod frame;
mod handshake;
mod hosts;
mod key;
mod load;
mod loading;
mod message;
mod parallel;
mod pass;
mod pipeline;
mod plan;
mod remote_state;
mod server_connection;
mod split;
mod stage;
mod sum;
mod tensor;
mod worker;
mod worker_client;
mod worker_pool;
mod workers;

pub use hosts::{Host, PORT};
pub use key::Key;
pub(crate) use load::load;
pub use parallel::Parallel;
pub(crate) use plan::plan;
pub use plan::{Plan, Share};
pub use worker::{Worker, WorkerEvent};
pub use workers::{HEARTBEAT_TIMEOUT, TIMEOUT_RANGE, Workers};
