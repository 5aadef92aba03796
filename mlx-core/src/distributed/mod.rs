//! One model on several machines. Rank 0 has the first layers, the embedding, the head and the engine; workers have the layers behind them,
//! and answer rank 0 over TCP. Hidden states go from rank 0 to each worker and back (decision 0041).

mod connection;
mod divided;
mod fleet;
mod frame;
mod hosts;
mod key;
mod link;
mod load;
mod message;
mod pipeline;
mod plan;
mod split;
mod stage;
mod worker;
mod workers;

pub use hosts::{Host, PORT};
pub use key::Key;
pub(crate) use load::load;
pub(crate) use plan::plan;
pub use plan::{Plan, Share};
pub use worker::{Worker, WorkerEvent};
pub use workers::{SILENCE, TIMEOUT_RANGE, Workers};
