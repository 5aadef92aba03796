//! Sampling settings of a request or of a model. An absent one is taken from the next source: the request, then the
//! model's `generation_config.json`, then the defaults of [`super::SamplingParams`].

/// Settings of a request or of a model; meanings and ranges are those of [`super::SamplingParams`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// See [`super::SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`super::SamplingParams::top_k`].
    pub top_k: Option<u32>,
    /// See [`super::SamplingParams::typical_p`].
    pub typical_p: Option<f32>,
    /// See [`super::SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`super::SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`super::Xtc`].
    pub xtc: XtcOptions,
    /// See [`super::Penalties`].
    pub penalties: PenaltyOptions,
    /// See [`super::Dry`].
    pub dry: DryOptions,
    /// See [`super::SamplingParams::logit_bias`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`super::SamplingParams::seed`]. Absent, the operating system gives one.
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
