//! The wavelengths of rotary embedding after stretching, in double precision.

use std::f64::consts::TAU;

use super::rope_config::{RopeConfig, RopeScaling};

/// The wavelength over 2 pi of each pair of dimensions; `None` where the base says it all. A pair that stands still has an infinite
/// one. `beyond` is for sequences beyond the border of LongRoPE.
pub(super) fn stretched(config: &RopeConfig, beyond: bool) -> Option<Vec<f64>> {
    let plain = |pair: usize, width: usize| config.base.powf(2.0 * pair as f64 / width as f64);
    let pairs = 0..config.dimensions / 2;
    Some(match &config.scaling {
        RopeScaling::None | RopeScaling::Linear(_) => return None,
        RopeScaling::Llama3 { .. } => {
            pairs.map(|pair| llama3(plain(pair, config.dimensions), &config.scaling)).collect()
        }
        RopeScaling::Yarn { .. } => {
            pairs.map(|pair| yarn(config, pair, plain(pair, config.dimensions))).collect()
        }
        RopeScaling::Long { short, long, .. } => {
            let factors = if beyond { long } else { short };
            pairs.zip(factors).map(|(pair, factor)| factor * plain(pair, config.dimensions)).collect()
        }
        RopeScaling::Proportional { factor, head_size } => {
            let turns = |pair| factor * plain(pair, *head_size);
            let stands = head_size / 2 - config.dimensions / 2;
            pairs.map(turns).chain(std::iter::repeat_n(f64::INFINITY, stands)).collect()
        }
    })
}

/// transformers' `_compute_llama3_parameters` is the reference.
fn llama3(length: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_frequency, high_frequency, original_context } = scaling else {
        return length;
    };
    let wavelength = TAU * length;
    if wavelength < original_context / high_frequency {
        return length;
    }
    if wavelength > original_context / low_frequency {
        return length * factor;
    }
    let share = (original_context / wavelength - low_frequency) / (high_frequency - low_frequency);
    length / ((1.0 - share) / factor + share)
}

/// transformers' `_compute_yarn_parameters` is the reference.
fn yarn(config: &RopeConfig, pair: usize, length: f64) -> f64 {
    let RopeScaling::Yarn { factor, fast, slow, truncate, original_context } = &config.scaling else {
        return length;
    };
    let width = config.dimensions as f64;
    // The pair that turns this often in the original context.
    let pair_of = |turns: f64| width * (original_context / (turns * TAU)).ln() / (2.0 * config.base.ln());
    let (mut low, mut high) = (pair_of(*fast), pair_of(*slow));
    if *truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(width - 1.0));
    let high = if low.total_cmp(&high).is_eq() { high + 0.001 } else { high };
    let stretched = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
    1.0 / (stretched / (factor * length) + (1.0 - stretched) / length)
}
