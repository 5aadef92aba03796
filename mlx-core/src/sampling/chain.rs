//! The filters of a request, in the order in which they run.

use std::sync::Arc;

use super::filters::{Candidates, min_p_floor};
use super::parameters::SamplingParams;
use super::params::Xtc;
use super::scan::Scan;

/// An enabled filter with its setting.
#[derive(Debug, Clone, Copy)]
enum Filter {
    TopK(usize),
    TypicalP(f32),
    TopP(f32),
    MinP(f32),
    Xtc(Xtc),
}

/// The enabled filters. To add one, add a variant to [`Filter`], a line to [`Chain::new`] and an arm to [`Chain::apply`]. If it can
/// start cheaply from a row, also add an arm to [`Chain::start`].
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

    /// Filters the row that `scan` has read into `pool`. Returns false if no filter runs. XTC runs if the uniform number `gate` is below its
    /// probability.
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

    /// The approximate cost of a draw, in passes over the row that only compare.
    pub(super) fn cost(&self) -> usize {
        match self.filters.first() {
            Some(Filter::TopK(_) | Filter::MinP(_)) => 2,
            None => 8,
            Some(Filter::TopP(_) | Filter::TypicalP(_) | Filter::Xtc(_)) => 32,
        }
    }

    /// Applies the first filter to the row. It copies only the candidates that it needs.
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
