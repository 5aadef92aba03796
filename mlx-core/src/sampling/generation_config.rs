//! Sampling settings of a model: `generation_config.json`.

use super::options::{PenaltyOptions, SamplingOptions};
use super::params::SamplingParams;
use crate::config::Fields;
use crate::error::{Error, Result};

impl SamplingOptions {
    /// Reads `generation_config.json`; `do_sample: false` is a temperature of 0.
    pub fn read(fields: &Fields) -> Result<Self> {
        let number = |key| fields.optional_number(key).map(|number| number.map(|number| number as f32));
        let greedy = fields.optional_flag("do_sample")? == Some(false);
        let options = Self {
            temperature: if greedy { Some(0.0) } else { number("temperature")? },
            top_k: top_k(fields)?,
            typical_p: number("typical_p")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            penalties: PenaltyOptions {
                repetition: number("repetition_penalty")?,
                ..PenaltyOptions::default()
            },
            ..Self::default()
        };
        SamplingParams::resolve(&options, &Self { seed: Some(0), ..Self::default() })
            .map_err(|error| Error::file(fields.path(), error.to_string()))?;
        Ok(options)
    }
}

/// Some exports write -1 for "off".
fn top_k(fields: &Fields) -> Result<Option<u32>> {
    match fields.optional_number("top_k")? {
        Some(k) if k.fract() != 0.0 || k < -1.0 => {
            Err(fields.error("top_k", format_args!("is {k}; it must be a whole number")))
        }
        k => Ok(k.map(|k| k as u32)),
    }
}
