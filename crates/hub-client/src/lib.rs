//! Downloads models from the Hugging Face Hub into the cache that all Hub tools share. Downloads are resumable,
//! parallel, and verified against their checksums.
//!
//! ```no_run
//! use mlx_hub::HubName;
//! use mlx_hub_client::{Download, Progress};
//!
//! fn pull(name: &HubName, progress: &dyn Progress) -> mlx_hub::Result<()> {
//!     let folder = Download::find(name)?.run(progress, |_| Ok(()))?;
//!     println!("{}", folder.display());
//!     Ok(())
//! }
//! ```

mod address;
mod backoff;
mod checksum;
mod client;
mod download;
mod fetch;
mod lender;
mod listing;
mod plan;
mod progress;
mod token;

pub use download::{Download, is_offline};
pub use listing::HubFile;
pub use progress::{FileProgress, Progress};
