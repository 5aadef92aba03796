//! Log-probabilities under the model's raw row.

use super::math::{is_broken, largest, log_sum_exp};
use super::scratch::Scratch;
use crate::error::{Error, Result};

/// The log-probability of a token and of its likeliest alternatives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprob {
    /// `x[token] - logsumexp(x)`.
    pub logprob: f32,
    /// The likeliest tokens of the row, in falling order, as many as requested.
    pub top: Vec<(u32, f32)>,
}

/// The log-probabilities of `token` and of the `count` likeliest tokens under a raw row.
///
/// # Errors
/// When the row holds a NaN or plus infinity, or no finite logit.
pub fn score(row: &[f32], token: u32, count: usize, scratch: &mut Scratch) -> Result<TokenLogprob> {
    check_row(row)?;
    let normalizer = log_sum_exp(row);
    let logprob = |logit: f32| (f64::from(logit) - normalizer) as f32;
    scratch.pool.top_k_of_row(row, count);
    Ok(TokenLogprob {
        logprob: logprob(row[token as usize]),
        top: scratch.pool.ranked().iter().map(|it| (it.id, logprob(it.logit))).collect(),
    })
}

/// A row that holds no distribution is an error, never a random token.
pub(super) fn check_row(row: &[f32]) -> Result<()> {
    if is_broken(row) {
        return Err(Error::NotFinite("a logit"));
    }
    if largest(row) == f32::NEG_INFINITY {
        return Err(Error::Sampling("the model gave no token any probability".into()));
    }
    Ok(())
}
