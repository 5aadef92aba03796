//! Draws from several rows on several threads. Invariant: a draw is a function of its row, its sampler and its history, so threads do not
//! change tokens.

use std::panic::resume_unwind;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use super::scratch::Scratch;

/// The cost, in logits read, above which another thread is worthwhile. A draw of this cost takes about as long as starting ten threads.
const LOGITS_PER_THREAD: usize = 1 << 20;

/// Returns the outcome of each request, in order. `cost` is their total cost, in logits that are read once. If a draw panics, this
/// thread panics after all draws.
pub(super) fn draw_all<Request: Send, Outcome: Send>(
    requests: &mut [Request],
    cost: usize,
    scratch: &mut Scratch,
    draw: impl Fn(&mut Request, &mut Scratch) -> Outcome + Sync,
) -> Vec<Outcome> {
    let helpers = (cost / LOGITS_PER_THREAD).min(requests.len().saturating_sub(1)).min(processors() - 1);
    if helpers == 0 {
        return requests.iter_mut().map(|request| draw(request, scratch)).collect();
    }
    let mut others = std::mem::take(&mut scratch.others);
    others.resize_with(others.len().max(helpers), Scratch::default);
    let left = Mutex::new(requests.iter_mut().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |scratch: &mut Scratch| {
        let drawn = std::iter::from_fn(next).map(|(place, request)| (place, draw(request, scratch)));
        drawn.collect::<Vec<_>>()
    };
    let mut drawn = thread::scope(|scope| {
        let spawn = |scratch| {
            let thread = thread::Builder::new().name("draw".into());
            thread.spawn_scoped(scope, || work(scratch)).ok()
        };
        // If a thread cannot start, the others draw more.
        let helpers: Vec<_> = others.iter_mut().take(helpers).filter_map(spawn).collect();
        let mut drawn = work(scratch);
        for helper in helpers {
            drawn.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        drawn
    });
    scratch.others = others;
    drawn.sort_unstable_by_key(|(place, _)| *place);
    drawn.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The number of processors. Cached, because Linux reads files to determine it.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns the outcomes of `draw` for forty rows, at a cost that justifies threads.
    fn draws(draw: impl Fn(usize) -> usize + Sync) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..40).collect();
        draw_all(&mut rows, 100 * LOGITS_PER_THREAD, &mut Scratch::default(), |row, _| draw(*row))
    }

    #[test]
    fn every_row_is_drawn_once_and_outcomes_are_in_order() {
        let count = AtomicUsize::new(0);
        let outcomes = draws(|row| {
            count.fetch_add(1, Ordering::Relaxed);
            row + 100
        });
        assert_eq!(count.into_inner(), 40);
        assert_eq!(outcomes, (100..140).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_is_one_of_the_calling_thread_with_its_message() {
        for bad in [0, 20, 39] {
            let draw = |row| {
                assert!(row != bad, "row {row} is bad");
                row
            };
            let panic = catch_unwind(AssertUnwindSafe(|| draws(draw).len())).expect_err("one panics");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("row {bad} is bad")));
        }
    }
}
