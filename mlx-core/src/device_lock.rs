//! A lock for unit tests that use the device, since MLX is not safe under parallel tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Backend;

/// Locks the device until the guard is dropped. `MLX_DEVICE` may select the device.
pub(crate) fn device() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    Backend::detect().expect("a device");
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}
