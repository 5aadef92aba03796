//! Pauses of long work on the host, which let other work run.

use crate::error::Result;

/// A function that is called regularly during long work on the host. It may wait, to let other work run. An
/// error stops the work.
pub type Pause<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// A [`Pause`] that never waits and never stops the work.
pub const NO_PAUSE: Pause = &|| Ok(());
