//! The turn on the device, for unit tests: MLX is not safe under parallel tests, so whatever computes holds this.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the turn.
pub(crate) fn device() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
