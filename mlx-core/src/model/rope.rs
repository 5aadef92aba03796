//! Rotary position embedding (Su et al., 2021, arXiv:2104.09864) and its scaled forms.

use std::f64::consts::TAU;

use mlx_rs::Array;
use mlx_rs::fast::{rope, rope_dynamic};

use crate::config::Fields;
use crate::error::Result;

/// How a checkpoint stretches rope beyond the length it was first trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No stretching.
    None,
    /// All positions are divided by the factor (Chen et al., 2023, arXiv:2306.15595).
    Linear(f64),
    /// Llama 3.1: long wavelengths are slowed by the factor, short ones kept, those between blended.
    Llama3 {
        /// How much the longest wavelengths are stretched.
        factor: f64,
        /// Wavelengths above `original_context / low_frequency` get the whole factor.
        low_frequency: f64,
        /// Wavelengths below `original_context / high_frequency` are kept.
        high_frequency: f64,
        /// The context length before the stretching, in tokens.
        original_context: f64,
    },
}

/// What a checkpoint says about rope.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// How many of a head's dimensions turn; even.
    pub dimensions: usize,
    /// The base of the wavelengths, `rope_theta`.
    pub base: f64,
    /// The stretching.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Reads `rope_theta` and `rope_scaling`, or the newer `rope_parameters` that holds both.
    pub fn read(fields: &Fields, dimensions: usize) -> Result<Self> {
        if !dimensions.is_multiple_of(2) {
            return Err(fields.error("head_dim", format_args!("is {dimensions}; rope needs an even number")));
        }
        let newer = fields.section("rope_parameters")?;
        let base = match &newer {
            Some(section) if section.has("rope_theta") => section.optional_positive("rope_theta")?,
            _ => fields.optional_positive("rope_theta")?,
        };
        let section = if newer.is_some() { newer } else { fields.section("rope_scaling")? };
        let scaling = section.map_or(Ok(RopeScaling::None), |section| RopeScaling::read(&section))?;
        Ok(Self { dimensions, base: base.unwrap_or(10_000.0), scaling })
    }
}

impl RopeScaling {
    fn read(section: &Fields) -> Result<Self> {
        let key = if section.has("rope_type") { "rope_type" } else { "type" };
        match section.optional_text(key)? {
            None | Some("default") => Ok(Self::None),
            Some("linear") => Ok(Self::Linear(section.positive("factor")?)),
            Some("llama3") => {
                let scaling = Self::Llama3 {
                    factor: section.positive("factor")?,
                    low_frequency: section.positive("low_freq_factor")?,
                    high_frequency: section.positive("high_freq_factor")?,
                    original_context: section.positive("original_max_position_embeddings")?,
                };
                match scaling {
                    Self::Llama3 { low_frequency, high_frequency, .. } if high_frequency <= low_frequency => {
                        Err(section.error("high_freq_factor", "must be above low_freq_factor"))
                    }
                    valid => Ok(valid),
                }
            }
            Some(other) => Err(section.error(
                key,
                format_args!("{other:?} is not supported; supported are default, linear and llama3"),
            )),
        }
    }
}

/// Where the rows of an input stand in their sequences.
pub(crate) enum Positions {
    /// `[1, H, T, D]`: T consecutive positions from here.
    From(i32),
    /// `[R, H, 1, D]`: one position a row, `[R]` of i32.
    Each(Array),
}

/// Turns pairs of a head's dimensions by an angle that grows with the position.
pub(crate) struct Rope {
    dimensions: i32,
    base: Option<f32>,
    scale: f32,
    /// `[dimensions / 2]` wavelengths over 2 pi, in place of the base.
    wavelengths: Option<Array>,
}

impl Rope {
    /// The constants of the turning.
    pub(crate) fn new(config: &RopeConfig) -> Self {
        let dimensions = config.dimensions as i32;
        let base = Some(config.base as f32);
        match config.scaling {
            RopeScaling::None => Self { dimensions, base, scale: 1.0, wavelengths: None },
            RopeScaling::Linear(factor) => {
                Self { dimensions, base, scale: (1.0 / factor) as f32, wavelengths: None }
            }
            RopeScaling::Llama3 { .. } => {
                let lengths: Vec<f32> =
                    llama3_wavelengths(config).iter().map(|&length| length as f32).collect();
                let wavelengths = Some(Array::from_slice(&lengths, &[dimensions / 2]));
                Self { dimensions, base: None, scale: 1.0, wavelengths }
            }
        }
    }

    /// Turns `[B, H, T, D]` by its positions.
    pub(crate) fn forward(&self, input: &Array, positions: &Positions) -> Result<Array> {
        let (dimensions, base, scale) = (self.dimensions, self.base, self.scale);
        let wavelengths = self.wavelengths.as_ref();
        Ok(match positions {
            Positions::From(start) => rope(input, dimensions, false, base, scale, *start, wavelengths)?,
            Positions::Each(starts) => {
                rope_dynamic(input, dimensions, false, base, scale, starts, wavelengths)?
            }
        })
    }
}

/// The wavelength over 2 pi of each pair, after Llama 3.1's stretching
/// (transformers' `_compute_llama3_parameters` is the reference).
fn llama3_wavelengths(config: &RopeConfig) -> Vec<f64> {
    let RopeScaling::Llama3 { factor, low_frequency, high_frequency, original_context } = config.scaling
    else {
        return Vec::new();
    };
    let pairs = config.dimensions / 2;
    let plain = (0..pairs).map(|pair| config.base.powf(pair as f64 / pairs as f64));
    let stretch = |length: f64| {
        let wavelength = TAU * length;
        if wavelength < original_context / high_frequency {
            return length;
        }
        if wavelength > original_context / low_frequency {
            return length * factor;
        }
        let share = (original_context / wavelength - low_frequency) / (high_frequency - low_frequency);
        length / ((1.0 - share) / factor + share)
    };
    plain.map(stretch).collect()
}
