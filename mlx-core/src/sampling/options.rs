//! Sampling settings as someone gave them. Absent means "whatever the next place says": the request, then the
//! model's `generation_config.json`, then the defaults of [`SamplingParams`].

use super::params::SamplingParams;
use crate::config::Fields;
use crate::error::{Error, Result};

/// Settings of a request or of a model; meanings and ranges are those of [`SamplingParams`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<u32>,
    /// See [`SamplingParams::typical_p`].
    pub typical_p: Option<f32>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`super::Xtc`].
    pub xtc: XtcOptions,
    /// See [`super::Penalties`].
    pub penalties: PenaltyOptions,
    /// See [`super::Dry`].
    pub dry: DryOptions,
    /// See [`SamplingParams::logit_bias`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`SamplingParams::seed`]; none given, one is taken from the operating system.
    pub seed: Option<u64>,
}

/// See [`super::Xtc`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct XtcOptions {
    /// `xtc_probability`
    pub probability: Option<f32>,
    /// `xtc_threshold`
    pub threshold: Option<f32>,
}

/// See [`super::Penalties`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PenaltyOptions {
    /// `repetition_penalty`
    pub repetition: Option<f32>,
    /// `frequency_penalty`
    pub frequency: Option<f32>,
    /// `presence_penalty`
    pub presence: Option<f32>,
    /// `penalty_last_n`
    pub window: Option<i64>,
}

/// See [`super::Dry`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DryOptions {
    /// `dry_multiplier`
    pub multiplier: Option<f32>,
    /// `dry_base`
    pub base: Option<f32>,
    /// `dry_allowed_length`
    pub allowed_length: Option<u32>,
    /// `dry_penalty_last_n`
    pub window: Option<i64>,
    /// `dry_sequence_breakers`
    pub breakers: Option<Vec<String>>,
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Penalties;

    fn resolve(request: &SamplingOptions) -> Result<SamplingParams> {
        SamplingParams::resolve(request, &SamplingOptions::default())
    }

    #[test]
    fn the_request_wins_over_the_model_and_the_model_over_ours() {
        let model = SamplingOptions { temperature: Some(0.6), top_k: Some(20), ..SamplingOptions::default() };
        let request = SamplingOptions { top_k: Some(5), seed: Some(9), ..SamplingOptions::default() };
        let params = SamplingParams::resolve(&request, &model).expect("valid");
        assert_eq!((params.temperature, params.top_k, params.top_p, params.seed), (0.6, 5, 1.0, 9));
        let off = Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0, window: -1 };
        assert_eq!((params.penalties, params.penalties.is_on(), params.dry.is_on()), (off, false, false));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        type Change = fn(&mut SamplingOptions);
        let with = |change: Change| {
            let mut options = SamplingOptions::default();
            change(&mut options);
            resolve(&options).expect_err("it must be refused").to_string()
        };
        let cases: [(&str, Change); 14] = [
            ("temperature", |it| it.temperature = Some(-1.0)),
            ("temperature", |it| it.temperature = Some(f32::NAN)),
            ("temperature", |it| it.temperature = Some(f32::INFINITY)),
            ("typical_p", |it| it.typical_p = Some(-0.1)),
            ("top_p", |it| it.top_p = Some(1.01)),
            ("min_p", |it| it.min_p = Some(1.5)),
            ("xtc_probability", |it| it.xtc.probability = Some(2.0)),
            ("xtc_threshold", |it| it.xtc.threshold = Some(-0.1)),
            ("repetition_penalty", |it| it.penalties.repetition = Some(0.0)),
            ("frequency_penalty", |it| it.penalties.frequency = Some(1e9)),
            ("penalty_last_n", |it| it.penalties.window = Some(-2)),
            ("dry_base", |it| it.dry.base = Some(0.5)),
            ("dry_sequence_breakers", |it| it.dry.breakers = Some(vec![String::new()])),
            ("logit_bias", |it| it.logit_bias = vec![(3, 1.0), (3, 2.0)]),
        ];
        for (field, change) in cases {
            let message = with(change);
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
