//! Memory pressure. If the system is short of memory, an engine frees what it caches for later requests, but nothing that it has promised.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::macos;

/// The default polling interval of a source.
const INTERVAL: Duration = Duration::from_secs(1);

/// The minimum polling interval.
const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// The memory pressure of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// There is enough memory.
    Normal,
    /// The system compresses memory and asks programs to free some.
    Warning,
    /// The system is about to kill programs.
    Critical,
}

impl MemoryPressure {
    /// Converts a level of macOS.
    fn from_level(level: i32) -> Self {
        match level {
            ..=1 => Self::Normal,
            2 | 3 => Self::Warning,
            4.. => Self::Critical,
        }
    }
}

/// A source of the memory pressure. Its function returns `None` if the system does not report it.
#[derive(Clone)]
pub struct PressureSource {
    ask: Arc<dyn Fn() -> Option<MemoryPressure> + Send + Sync>,
    interval: Duration,
}

impl PressureSource {
    /// Creates a source that calls this function once per second.
    pub fn new(ask: impl Fn() -> Option<MemoryPressure> + Send + Sync + 'static) -> Self {
        Self { ask: Arc::new(ask), interval: INTERVAL }
    }

    /// Sets the polling interval.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Creates a source that asks the system. Only macOS reports memory pressure.
    pub(crate) fn system() -> Self {
        Self::new(|| macos::pressure_level().map(MemoryPressure::from_level))
    }
}

impl fmt::Debug for PressureSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PressureSource").finish_non_exhaustive()
    }
}

impl PartialEq for PressureSource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ask, &other.ask) && self.interval == other.interval
    }
}

impl Eq for PressureSource {}

/// Polls a source.
pub(crate) struct PressureWatch {
    source: PressureSource,
    next: Instant,
    latest: MemoryPressure,
    /// True if the source reports memory pressure.
    pub(crate) is_on: bool,
}

impl PressureWatch {
    pub(crate) fn new(source: PressureSource, now: Instant) -> Self {
        let is_on = (source.ask)().is_some();
        Self { source, next: now, latest: MemoryPressure::Normal, is_on }
    }

    /// The polling interval.
    pub(crate) fn interval(&self) -> Duration {
        self.source.interval.max(LEAST_INTERVAL)
    }

    /// Polls the source if it is time, and returns the pressure if the engine must free memory: if it has risen, or is critical. A lasting
    /// warning is returned only once, so that memory cached after it remains useful.
    pub(crate) fn poll_if_due(&mut self, now: Instant) -> Option<MemoryPressure> {
        if !self.is_on || now < self.next {
            return None;
        }
        self.next = now + self.interval();
        let pressure = (self.source.ask)()?;
        let before = std::mem::replace(&mut self.latest, pressure);
        (pressure > before || pressure == MemoryPressure::Critical).then_some(pressure)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn levels_are_those_of_macos() {
        let levels = [1, 2, 4].map(MemoryPressure::from_level);
        assert_eq!(levels, [MemoryPressure::Normal, MemoryPressure::Warning, MemoryPressure::Critical]);
    }

    fn watch(levels: &'static [i32]) -> (Arc<AtomicUsize>, PressureWatch, Instant) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let source = PressureSource::new(move || {
            let time = count.fetch_add(1, Ordering::Relaxed);
            Some(MemoryPressure::from_level(levels[time.min(levels.len() - 1)]))
        });
        let start = Instant::now();
        (asked, PressureWatch::new(source, start), start)
    }

    #[test]
    fn the_source_is_asked_once_an_interval() {
        let (asked, mut watch, start) = watch(&[4]);
        let answers = [0, 400, 999, 1000, 1500, 2600]
            .map(|millis| watch.poll_if_due(start + Duration::from_millis(millis)).is_some());
        assert_eq!(answers, [true, false, false, true, false, true]);
        assert_eq!(asked.load(Ordering::Relaxed), 4, "once at the start");
    }

    #[test]
    fn a_warning_that_lasts_is_answered_once() {
        let (_, mut watch, start) = watch(&[1, 2, 2, 2, 1, 2, 4, 4, 2]);
        let answers: Vec<bool> =
            (0..8).map(|second| watch.poll_if_due(start + INTERVAL * second).is_some()).collect();
        assert_eq!(answers, [true, false, false, false, true, true, true, false]);
    }

    #[test]
    fn a_silent_source_is_not_asked_again() {
        let start = Instant::now();
        let mut watch = PressureWatch::new(PressureSource::new(|| None), start);
        assert!(!watch.is_on && watch.poll_if_due(start + INTERVAL).is_none());
    }
}
