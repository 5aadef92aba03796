//! Array sizes. Each is measured once and stored with its array, since every step of the engine adds up sizes.

use mlx_rs::Array;

#[cfg(test)]
thread_local! {
    static MEASURED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the bytes of these arrays.
pub(super) fn measure<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> usize {
    #[cfg(test)]
    MEASURED.with(|measured| measured.set(measured.get() + 1));
    arrays.into_iter().map(Array::nbytes).sum()
}

/// The number of measurements on this thread.
#[cfg(test)]
pub(super) fn measured() -> usize {
    MEASURED.with(std::cell::Cell::get)
}
