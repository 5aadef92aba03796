//! Log-probabilities under the raw logits of the model.

use serde::{Deserialize, Serialize};

use super::math::log_sum_exp;
use super::scan::Scan;
use super::scratch::Scratch;
use crate::error::{Error, Result};

/// The log-probability of a token and those of its likeliest alternatives.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// `x[token] - logsumexp(x)`.
    pub logprob: f32,
    /// The likeliest tokens of the row, in descending order, as many as requested.
    pub top: Vec<(u32, f32)>,
}

/// Computes the log-probabilities of `token` and of the `count` likeliest tokens under a row of raw logits.
///
/// # Errors
/// Fails if the row contains NaN or plus infinity, or no finite logit.
pub fn score(row: &[f32], token: u32, count: usize, scratch: &mut Scratch) -> Result<TokenLogprob> {
    scratch.raw.read(row);
    check_row(&scratch.raw)?;
    Ok(score_read(row, token, count, scratch))
}

/// Like [`score`], for a checked row that `scratch.raw` has scanned.
pub(super) fn score_read(row: &[f32], token: u32, count: usize, scratch: &mut Scratch) -> TokenLogprob {
    let (scan, pool) = (&scratch.raw, &mut scratch.choice.pool);
    let normalizer = log_sum_exp(row, scan.top());
    let logprob = |logit: f32| (f64::from(logit) - normalizer) as f32;
    pool.top_k_of_row(row, scan, count);
    TokenLogprob {
        logprob: logprob(row[token as usize]),
        top: pool.ranked().iter().map(|it| (it.id, logprob(it.logit))).collect(),
    }
}

/// Fails if the row does not define a distribution, so that no token is drawn from it.
pub(super) fn check_row(scan: &Scan) -> Result<()> {
    if scan.is_broken() {
        return Err(Error::NotFinite("a logit"));
    }
    if scan.top() == f32::NEG_INFINITY {
        return Err(Error::Sampling("the model gave every token a probability of 0".into()));
    }
    Ok(())
}
