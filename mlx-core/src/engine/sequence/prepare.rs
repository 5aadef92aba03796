//! Computes the token masks of a step while the device computes the step, on several threads if one would take long.

use std::sync::OnceLock;
use std::thread::{available_parallelism, scope};
use std::time::Duration;

use super::{Sequence, Sequences};
use crate::sampling::{Constraint, TokenHistory};

/// If all masks together take less than this, one thread computes them, since starting threads costs tens of microseconds. Not tuned by
/// measurements yet.
const WORTH_THREADS: Duration = Duration::from_micros(400);

/// A constraint and the history that it follows.
type Row<'a> = (&'a mut (dyn Constraint + 'static), &'a TokenHistory);

impl Sequences {
    /// Prepares the constraints of these sequences for their next draw. Sequences that have ended are skipped. `ids` must be in ascending
    /// order.
    pub(in crate::engine) fn prepare_draws(&mut self, ids: &[u64]) {
        let present: Vec<u64> = ids.iter().copied().filter(|id| self.find(*id).is_some()).collect();
        prepare(self.several_mut(&present).into_iter().filter_map(row).collect());
    }
}

fn prepare(mut rows: Vec<Row>) {
    if rows.is_empty() {
        return;
    }
    // The cost of the previous masks is the best estimate.
    let cost: Duration = rows.iter().map(|(constraint, _)| constraint.last_prepare_time()).sum();
    let threads = if cost < WORTH_THREADS { 1 } else { rows.len().min(processors() / 2).max(1) };
    let share = rows.len().div_ceil(threads).max(1);
    scope(|threads| {
        let mut shares = rows.chunks_mut(share);
        let own = shares.next();
        for others in shares {
            threads.spawn(|| prepare_each(others));
        }
        if let Some(own) = own {
            prepare_each(own);
        }
    });
}

/// Returns the number of processors. Cached, because on Linux the query reads files, which would happen in every step.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, usize::from))
}

fn row(sequence: &mut Sequence) -> Option<Row<'_>> {
    let Sequence { sampler, history, .. } = sequence;
    Some((sampler.constraint_mut()?, history))
}

fn prepare_each(rows: &mut [Row]) {
    for (constraint, history) in rows {
        constraint.prepare(history);
    }
}
