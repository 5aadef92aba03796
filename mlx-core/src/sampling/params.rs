//! What a request may ask of the sampler. Invariant: the one place of defaults and of allowed ranges.

use crate::config::Fields;
use crate::error::{Error, Result};

/// The most alternatives whose log-probabilities a request may ask for at each position.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Sampling settings as someone gave them: a request, or a model's `generation_config.json`. Absent means
/// "whatever the next place says".
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the likeliest token. From 0 up.
    pub temperature: Option<f32>,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all. In (0, 1].
    pub top_p: Option<f32>,
    /// Drops tokens less likely than this share of the likeliest; 0 drops none. In [0, 1].
    pub min_p: Option<f32>,
    /// Seed of the draws. None given: one is taken from the operating system.
    pub seed: Option<u64>,
}

/// Validated settings, as the sampler uses them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// See [`SamplingOptions::temperature`].
    pub temperature: f32,
    /// See [`SamplingOptions::top_k`].
    pub top_k: u32,
    /// See [`SamplingOptions::top_p`].
    pub top_p: f32,
    /// See [`SamplingOptions::min_p`].
    pub min_p: f32,
    /// See [`SamplingOptions::seed`].
    pub seed: u64,
}

impl SamplingParams {
    /// The settings of a request: its own value, else the model's, else ours.
    pub fn resolve(request: &SamplingOptions, model: &SamplingOptions) -> Result<Self> {
        let params = Self {
            temperature: request.temperature.or(model.temperature).unwrap_or(1.0),
            top_k: request.top_k.or(model.top_k).unwrap_or(0),
            top_p: request.top_p.or(model.top_p).unwrap_or(1.0),
            min_p: request.min_p.or(model.min_p).unwrap_or(0.0),
            seed: request.seed.or(model.seed).unwrap_or_else(random_seed),
        };
        params.check()?;
        Ok(params)
    }

    fn check(&self) -> Result<()> {
        let within = |field, value: f32, valid: bool, range: &str| {
            if valid { Ok(()) } else { Err(Error::request(field, format!("is {value}; it must be {range}"))) }
        };
        let temperature = self.temperature;
        within("temperature", temperature, temperature >= 0.0 && temperature.is_finite(), "0 or more")?;
        within("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        within("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")
    }
}

impl SamplingOptions {
    /// Reads `generation_config.json`; `do_sample: false` is a temperature of 0.
    pub fn read(fields: &Fields) -> Result<Self> {
        let number = |key| fields.optional_number(key).map(|number| number.map(|number| number as f32));
        let greedy = fields.optional_flag("do_sample")? == Some(false);
        let options = Self {
            temperature: if greedy { Some(0.0) } else { number("temperature")? },
            top_k: top_k(fields)?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            seed: None,
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

/// A seed that differs from run to run, from the operating system's own randomness. At most 2^53, so that it
/// survives a trip through JSON.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_wins_over_the_model_and_the_model_over_ours() {
        let model = SamplingOptions { temperature: Some(0.6), top_k: Some(20), ..SamplingOptions::default() };
        let request = SamplingOptions { top_k: Some(5), seed: Some(9), ..SamplingOptions::default() };
        let params = SamplingParams::resolve(&request, &model).expect("valid");
        let expected = SamplingParams { temperature: 0.6, top_k: 5, top_p: 1.0, min_p: 0.0, seed: 9 };
        assert_eq!(params, expected);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |options| {
            SamplingParams::resolve(&options, &SamplingOptions::default()).expect_err("refused").to_string()
        };
        let with = SamplingOptions::default;
        assert!(refused(SamplingOptions { temperature: Some(-1.0), ..with() }).starts_with("temperature:"));
        assert!(
            refused(SamplingOptions { temperature: Some(f32::NAN), ..with() }).starts_with("temperature:")
        );
        assert!(refused(SamplingOptions { top_p: Some(0.0), ..with() }).starts_with("top_p:"));
        assert!(refused(SamplingOptions { min_p: Some(1.5), ..with() }).starts_with("min_p:"));
    }
}
