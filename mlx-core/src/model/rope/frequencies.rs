//! The inverse frequencies of rotary embedding after scaling, in double precision.

use std::f64::consts::TAU;

use super::config::{RopeConfig, RopeScaling};

/// Returns the inverse frequency of each pair of dimensions: its wavelength divided by 2 pi. It is infinite for a pair that does not rotate.
/// Returns `None` if `theta` defines all of them. `use_long` is for sequences of the long variant of LongRoPE.
pub(super) fn inverse_frequencies(config: &RopeConfig, use_long: bool) -> Option<Vec<f64>> {
    let plain = |pair: usize, width: usize| config.theta.powf(2.0 * pair as f64 / width as f64);
    let pairs = 0..config.dims / 2;
    Some(match &config.scaling {
        RopeScaling::None | RopeScaling::Linear(_) => return None,
        RopeScaling::Llama3 { .. } => {
            pairs.map(|pair| llama3(plain(pair, config.dims), &config.scaling)).collect()
        }
        RopeScaling::Yarn { .. } => pairs.map(|pair| yarn(config, pair, plain(pair, config.dims))).collect(),
        RopeScaling::Long { short, long, .. } => {
            let factors = if use_long { long } else { short };
            pairs.zip(factors).map(|(pair, factor)| factor * plain(pair, config.dims)).collect()
        }
        RopeScaling::Proportional { factor, head_dim } => {
            let turns = |pair| factor * plain(pair, *head_dim);
            let stands = head_dim / 2 - config.dims / 2;
            pairs.map(turns).chain(std::iter::repeat_n(f64::INFINITY, stands)).collect()
        }
    })
}

/// Scales one inverse frequency. The reference is transformers' `_compute_llama3_parameters`.
fn llama3(length: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } =
        scaling
    else {
        return length;
    };
    let wavelength = TAU * length;
    if wavelength < original_max_position_embeddings / high_freq_factor {
        return length;
    }
    if wavelength > original_max_position_embeddings / low_freq_factor {
        return length * factor;
    }
    let share = (original_max_position_embeddings / wavelength - low_freq_factor)
        / (high_freq_factor - low_freq_factor);
    length / ((1.0 - share) / factor + share)
}

/// Scales one inverse frequency. The reference is transformers' `_compute_yarn_parameters`.
fn yarn(config: &RopeConfig, pair: usize, length: f64) -> f64 {
    let RopeScaling::Yarn { factor, fast, slow, truncate, original_max_position_embeddings } =
        &config.scaling
    else {
        return length;
    };
    let width = config.dims as f64;
    // Returns the pair with this many rotations in the original context.
    let pair_of = |turns: f64| {
        width * (original_max_position_embeddings / (turns * TAU)).ln() / (2.0 * config.theta.ln())
    };
    let (mut low, mut high) = (pair_of(*fast), pair_of(*slow));
    if *truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(width - 1.0));
    let high = if low.total_cmp(&high).is_eq() { high + 0.001 } else { high };
    let blend = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
    1.0 / (blend / (factor * length) + (1.0 - blend) / length)
}
