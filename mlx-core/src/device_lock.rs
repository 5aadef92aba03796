//! A lock for unit tests that use the device: MLX is not safe under parallel tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the device until the guard is dropped.
pub(crate) fn device() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}
