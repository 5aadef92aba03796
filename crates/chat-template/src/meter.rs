//! The limits of a rendering: time, memory and nesting. Templates are untrusted programs, so every operation counts its
//! work in advance, and every value counts its bytes while it exists.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fault::{Fault, Outcome};
use super::thread::Control;

/// The work between two checks of the clock, in bytes read or written. It takes well under a millisecond.
const INTERVAL: usize = 1 << 16;

/// The work of an operation on no text, in bytes.
pub(super) const STEP: usize = 16;

/// The limits on time and memory, shared by all renderings of a request. Create them once per request, even if its
/// prompt is rendered several times.
#[derive(Debug)]
pub struct RenderLimits {
    time: Duration,
    memory: usize,
    /// The time of earlier renderings, in microseconds.
    used: AtomicU64,
}

impl RenderLimits {
    /// The default time limit for all renderings of a request, without pauses. Real templates take milliseconds.
    pub const TIME: Duration = Duration::from_secs(5);
    /// The default limit for the bytes of all values that exist at the same time.
    pub const MEMORY: usize = 256 << 20;

    /// Returns unused limits.
    pub fn new(time: Duration, memory: usize) -> Self {
        Self { time, memory, used: AtomicU64::new(0) }
    }
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self::new(Self::TIME, Self::MEMORY)
    }
}

/// Counts the time and memory of one rendering.
#[derive(Debug, Clone)]
pub(super) struct Meter(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    control: Arc<Control>,
    /// The start time, shifted by earlier renderings and pauses.
    started: Cell<Instant>,
    time: Duration,
    memory: usize,
    /// Work since the last check of the clock.
    work: Cell<usize>,
    /// The size of all existing values, in bytes.
    held: Cell<usize>,
}

impl Meter {
    pub(super) fn new(limits: &RenderLimits, control: &Arc<Control>) -> Self {
        let (now, used) = (Instant::now(), Duration::from_micros(limits.used.load(Ordering::Relaxed)));
        Self(Rc::new(Counts {
            control: Arc::clone(control),
            started: Cell::new(now.checked_sub(used).unwrap_or(now)),
            time: limits.time,
            memory: limits.memory,
            work: Cell::new(INTERVAL),
            held: Cell::new(0),
        }))
    }

    /// Ends the rendering and stores the used time in `limits`.
    pub(super) fn end(&self, limits: &RenderLimits) {
        let used = self.0.started.get().elapsed().as_micros();
        limits.used.store(u64::try_from(used).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts the work of the next operation, in bytes. Fails when the time is used up.
    pub(super) fn spend(&self, bytes: usize) -> Outcome<()> {
        let counts = &self.0;
        let work = counts.work.get().saturating_add(bytes);
        if work < INTERVAL {
            counts.work.set(work);
            return Ok(());
        }
        counts.work.set(0);
        let asked = Instant::now();
        if !counts.control.should_continue() {
            return Err(Fault::stopped());
        }
        counts.started.set(counts.started.get() + asked.elapsed());
        if counts.started.get().elapsed() < counts.time {
            return Ok(());
        }
        Err(Fault::limit(format!("took longer than {} s and was stopped", counts.time.as_secs_f64())))
    }

    /// Reserves memory until the result is dropped.
    pub(super) fn reserve(&self, bytes: usize) -> Outcome<Reservation> {
        let mut held = Reservation { meter: self.clone(), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }

    /// Fails if this many bytes cannot be reserved.
    pub(super) fn check_memory(&self, bytes: usize) -> Outcome<()> {
        self.reserve(bytes).map(drop)
    }
}

/// Reserved memory.
#[derive(Debug)]
pub(super) struct Reservation {
    meter: Meter,
    bytes: usize,
}

impl Reservation {
    pub(super) fn grow(&mut self, bytes: usize) -> Outcome<()> {
        self.meter.spend(bytes)?;
        let counts = &self.meter.0;
        let total = counts.held.get().saturating_add(bytes);
        if total > counts.memory {
            let limit = counts.memory >> 20;
            return Err(Fault::limit(format!("takes more than {limit} MiB of memory and was stopped")));
        }
        counts.held.set(total);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let held = &self.meter.0.held;
        held.set(held.get() - self.bytes);
    }
}

/// A text that grows within the limits.
pub(super) struct Buffer {
    text: String,
    held: Reservation,
}

impl Buffer {
    pub(super) fn new(meter: &Meter) -> Self {
        Self { text: String::new(), held: Reservation { meter: meter.clone(), bytes: 0 } }
    }

    pub(super) fn push(&mut self, text: &str) -> Outcome<()> {
        self.held.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push_char(&mut self, letter: char) -> Outcome<()> {
        self.push(letter.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.held.meter
    }

    pub(super) fn into_parts(mut self) -> (String, Reservation) {
        self.text.shrink_to_fit();
        (self.text, self.held)
    }
}
