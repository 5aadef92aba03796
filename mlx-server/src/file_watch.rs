//! Notices changes of files that the server reads again while it runs.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::task::spawn_blocking;

/// The time between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);

/// The time and the size of each file; `None` for a file that cannot be found.
type Stamps = Vec<Option<(SystemTime, u64)>>;

/// Watches files for changes.
pub(crate) struct FileWatch {
    files: Vec<PathBuf>,
    known: Stamps,
}

impl FileWatch {
    /// Watches these files from now on.
    pub(crate) async fn new(files: Vec<PathBuf>) -> Self {
        let known = stamps(files.clone()).await;
        Self { files, known }
    }

    /// Waits until a file has changed.
    pub(crate) async fn changed(&mut self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let now = stamps(self.files.clone()).await;
            if now != self.known {
                self.known = now;
                return;
            }
        }
    }
}

async fn stamps(files: Vec<PathBuf>) -> Stamps {
    let stamp = |path: PathBuf| {
        let metadata = path.metadata().ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    spawn_blocking(move || files.into_iter().map(stamp).collect()).await.unwrap_or_default()
}
