//! Sampling settings of a request or of a model. An absent one is taken from the next source: the request, then the
//! model's `generation_config.json`, then [`super::SamplingDefaults`].

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

impl SamplingOptions {
    /// Returns these settings, with those of `other` for the absent ones.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let bias = if self.logit_bias.is_empty() { &other.logit_bias } else { &self.logit_bias };
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            typical_p: self.typical_p.or(other.typical_p),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            xtc: XtcOptions {
                probability: self.xtc.probability.or(other.xtc.probability),
                threshold: self.xtc.threshold.or(other.xtc.threshold),
            },
            penalties: PenaltyOptions {
                repetition: self.penalties.repetition.or(other.penalties.repetition),
                frequency: self.penalties.frequency.or(other.penalties.frequency),
                presence: self.penalties.presence.or(other.penalties.presence),
                window: self.penalties.window.or(other.penalties.window),
            },
            dry: DryOptions {
                multiplier: self.dry.multiplier.or(other.dry.multiplier),
                base: self.dry.base.or(other.dry.base),
                allowed_length: self.dry.allowed_length.or(other.dry.allowed_length),
                window: self.dry.window.or(other.dry.window),
                breakers: self.dry.breakers.clone().or_else(|| other.dry.breakers.clone()),
            },
            logit_bias: bias.clone(),
            seed: self.seed.or(other.seed),
        }
    }
}
