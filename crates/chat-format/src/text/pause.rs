//! How long work on the host lets others work.

use crate::error::Result;

/// Asked now and then during long work on the host. It may wait, to let others work; an error ends the work.
pub type Pause<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Never waits, and never ends the work.
pub const NO_PAUSE: Pause = &|| Ok(());
