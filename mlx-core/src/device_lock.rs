//! A lock for unit tests that use the device: MLX is not safe under parallel tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;

/// Locks the device, which MLX_DEVICE may choose, until the guard is dropped.
pub(crate) fn device() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    Backend::detect().expect("a device");
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}
