//! The bytes of arrays. An array is measured when it is made and its size is stored with it, since every step of the engine adds sizes up.

use mlx_rs::Array;

#[cfg(test)]
thread_local! {
    static MEASURED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The bytes of some arrays.
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
