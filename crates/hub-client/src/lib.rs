//! Downloads models from the Hugging Face Hub into the cache that all Hub tools share. Downloads are resumable,
//! parallel, and verified against their checksums.
//!
//! ```no_run
//! use mlx_hub::{Cache, HubName};
//! use mlx_hub_client::{Client, Fetch, Plan, Progress};
//!
//! fn pull(name: &HubName, progress: &dyn Progress) -> mlx_hub::Result<()> {
//!     let (client, repo) = (Client::from_env(&name.model)?, Cache::from_env()?.repo(&name.model));
//!     let plan = Plan::make(&client, &repo, name.file.as_deref())?;
//!     let fetch = Fetch::new(&client, &repo, &plan.commit);
//!     fetch.all(&plan.described, progress)?;
//!     fetch.all(&plan.weights, progress)
//! }
//! ```

mod address;
mod backoff;
mod checksum;
mod client;
mod fetch;
mod lender;
mod listing;
mod plan;
mod progress;
mod token;

pub use client::Client;
pub use fetch::Fetch;
pub use lender::Lender;
pub use listing::HubFile;
pub use plan::Plan;
pub use progress::{FileProgress, Progress};
