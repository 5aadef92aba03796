//! The filters of a request, in the order in which they run.

use std::sync::Arc;

use super::filters::{Candidates, min_p_floor};
use super::parameters::SamplingParams;
use super::params::Xtc;
use super::scan::Scan;

/// A filter that is on, with its setting.
#[derive(Debug, Clone, Copy)]
enum Filter {
    TopK(usize),
    TypicalP(f32),
    TopP(f32),
    MinP(f32),
    Xtc(Xtc),
}

/// The filters that are on. A new filter is a variant of [`Filter`], a line in [`Chain::new`] and an arm in [`Chain::apply`];
/// one that can start from a row cheaply gets an arm in [`Chain::start`], too.
#[derive(Debug)]
pub(super) struct Chain {
    filters: Vec<Filter>,
    /// Tokens that XTC never removes.
    protected: Arc<[u32]>,
}

impl Chain {
    pub(super) fn new(params: &SamplingParams, protected: Arc<[u32]>) -> Self {
        let SamplingParams { top_k, typical_p, top_p, min_p, .. } = *params;
        let xtc = params.xtc();
        let filters = [
            (top_k > 0).then_some(Filter::TopK(top_k as usize)),
            (typical_p < 1.0).then_some(Filter::TypicalP(typical_p)),
            (top_p < 1.0).then_some(Filter::TopP(top_p)),
            (min_p > 0.0).then_some(Filter::MinP(min_p)),
            xtc.is_on().then_some(Filter::Xtc(xtc)),
        ];
        Self { filters: filters.into_iter().flatten().collect(), protected }
    }

    /// Leaves in `pool` what the filters leave of the row that `scan` has read; false if none of them runs. `gate` is the uniform number that
    /// decides whether XTC runs.
    pub(super) fn filter(&self, row: &[f32], scan: &Scan, gate: f64, pool: &mut Candidates) -> bool {
        let runs = |filter: &&Filter| match filter {
            Filter::Xtc(xtc) => gate < f64::from(xtc.probability),
            _ => true,
        };
        let mut filters = self.filters.iter().filter(runs);
        let Some(&first) = filters.next() else { return false };
        self.start(first, row, scan, pool);
        for &filter in filters {
            self.apply(filter, pool);
        }
        true
    }

    /// About how often a draw reads the row, in passes that only compare.
    pub(super) fn cost(&self) -> usize {
        match self.filters.first() {
            Some(Filter::TopK(_) | Filter::MinP(_)) => 2,
            None => 8,
            Some(Filter::TopP(_) | Filter::TypicalP(_) | Filter::Xtc(_)) => 32,
        }
    }

    /// Applies the first filter, which takes no more of the row than it needs.
    fn start(&self, filter: Filter, row: &[f32], scan: &Scan, pool: &mut Candidates) {
        match filter {
            Filter::TopK(count) => pool.top_k_of_row(row, scan, count),
            Filter::TopP(p) => pool.top_p_of_row(row, scan, p),
            Filter::MinP(p) => {
                pool.at_least(row, scan, min_p_floor(scan.top(), p));
                pool.min_p(p);
            }
            Filter::TypicalP(_) | Filter::Xtc(_) => {
                pool.at_least(row, scan, f32::NEG_INFINITY);
                self.apply(filter, pool);
            }
        }
    }

    fn apply(&self, filter: Filter, pool: &mut Candidates) {
        match filter {
            Filter::TopK(count) => pool.top_k(count),
            Filter::TypicalP(p) => pool.typical_p(p),
            Filter::TopP(p) => pool.top_p(p),
            Filter::MinP(p) => pool.min_p(p),
            Filter::Xtc(xtc) => pool.exclude_top_choices(xtc, &self.protected),
        }
    }
}
