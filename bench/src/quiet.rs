//! Detects intervals in which the host of a virtual machine took processor time (steal time). Measurements are selected by that time only,
//! never by their results.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval of samples of steal time.
const STRETCH: Duration = Duration::from_millis(500);
/// The share of an interval's processor time above which the interval counts as disturbed.
const ALLOWED: f64 = 0.02;

/// Returns the seconds of steal time since boot, over all processors; `None` if the kernel does not report it.
fn taken() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    // In hundredths of a second: user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks: f64 = text.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(ticks / 100.0)
}

/// Samples steal time until it is ended.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    disturbed: JoinHandle<Vec<(Instant, Instant)>>,
}

/// The intervals with more steal time than allowed.
pub(crate) struct Disturbed(Vec<(Instant, Instant)>);

impl Watch {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self { stop, disturbed: thread::spawn(move || watch(&stopped)) }
    }

    pub(crate) fn end(self) -> Disturbed {
        self.stop.store(true, Ordering::Relaxed);
        Disturbed(self.disturbed.join().expect("the watch"))
    }
}

fn watch(stop: &AtomicBool) -> Vec<(Instant, Instant)> {
    let processors = thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let mut disturbed = Vec::new();
    let (mut begin, mut before) = (Instant::now(), taken());
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(STRETCH);
        let (end, after) = (Instant::now(), taken());
        let share = before.zip(after).map(|(before, after)| (after - before) / processors);
        if share.is_some_and(|taken| taken > ALLOWED * (end - begin).as_secs_f64()) {
            disturbed.push((begin, end));
        }
        (begin, before) = (end, after);
    }
    disturbed
}

impl Disturbed {
    /// Returns true if no disturbed interval overlaps the time between `begin` and `end`.
    pub(crate) fn spares(&self, begin: Instant, end: Instant) -> bool {
        self.0.iter().all(|&(from, to)| end <= from || to <= begin)
    }
}
