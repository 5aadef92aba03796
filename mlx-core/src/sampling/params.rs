//! The validated settings of the sampler. Invariant: the only place of allowed ranges and of values that mean "off".

use super::options::{DryOptions, PenaltyOptions, SamplingOptions, XtcOptions};
use crate::error::{Error, Result};

/// The most alternatives whose log-probabilities a request may ask for at each position.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// The most sequence breakers, and the most bytes of one: every drawn token is searched for all of them.
const MAX_BREAKERS: (usize, usize) = (64, 64);
/// The most entries of a logit bias.
const MAX_BIASES: usize = 4096;

/// Validated settings, as the sampler uses them.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most typical tokens whose probabilities reach this sum; 1 keeps all.
    pub typical_p: f32,
    /// Keeps the fewest likeliest tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Removal of the likeliest tokens.
    pub xtc: Xtc,
    /// Penalties on repeated tokens.
    pub penalties: Penalties,
    /// The penalty on repeated sequences.
    pub dry: Dry,
    /// Added to the logits of single tokens, by rising id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws.
    pub seed: u64,
}

/// Exclude top choices: with `probability`, all but the least likely of the tokens of at least `threshold` go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// How often; 0 is off.
    pub probability: f32,
    /// How likely a token must be to count as a top choice.
    pub threshold: f32,
}

/// Penalties on tokens of the history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divides positive and multiplies negative logits of tokens of prompt and answer; 1 is off.
    pub repetition: f32,
    /// Subtracted from the logit for each time a token was generated; 0 is off.
    pub frequency: f32,
    /// Subtracted from the logit if a token was generated; 0 is off.
    pub presence: f32,
    /// How many of the last tokens count: -1 all, 0 none.
    pub window: i64,
}

/// The penalty on continuing a repeated sequence ("don't repeat yourself").
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Scales the penalty; 0 is off.
    pub multiplier: f32,
    /// The penalty grows by this factor with each token of the repeated sequence.
    pub base: f32,
    /// The length of a repeated sequence from which on the penalty applies.
    pub allowed_length: u32,
    /// How many of the last tokens count: -1 all, 0 none.
    pub window: i64,
    /// Texts that no repeated sequence reaches across.
    pub breakers: Vec<String>,
}

impl SamplingParams {
    /// Returns the settings of a request: its own value, else the model's, else temperature 1 and everything off.
    pub fn resolve(request: &SamplingOptions, model: &SamplingOptions) -> Result<Self> {
        let given = request.or(model);
        let params = Self {
            temperature: given.temperature.unwrap_or(1.0),
            top_k: given.top_k.unwrap_or(0),
            typical_p: given.typical_p.unwrap_or(1.0),
            top_p: given.top_p.unwrap_or(1.0),
            min_p: given.min_p.unwrap_or(0.0),
            xtc: Xtc::resolve(&given.xtc)?,
            penalties: Penalties::resolve(&given.penalties)?,
            dry: Dry::resolve(given.dry)?,
            logit_bias: bias(given.logit_bias)?,
            seed: given.seed.unwrap_or_else(random_seed),
        };
        check("temperature", params.temperature, params.temperature >= 0.0, "0 or more")?;
        for (field, share) in [("typical_p", params.typical_p), ("top_p", params.top_p)] {
            check(field, share, (0.0..=1.0).contains(&share), "from 0 to 1")?;
        }
        check("min_p", params.min_p, (0.0..=1.0).contains(&params.min_p), "from 0 to 1")?;
        Ok(params)
    }
}

impl Xtc {
    fn resolve(given: &XtcOptions) -> Result<Self> {
        let xtc =
            Self { probability: given.probability.unwrap_or(0.0), threshold: given.threshold.unwrap_or(0.1) };
        let Self { probability, threshold } = xtc;
        check("xtc_probability", probability, (0.0..=1.0).contains(&probability), "from 0 to 1")?;
        check("xtc_threshold", threshold, (0.0..=1.0).contains(&threshold), "from 0 to 1")?;
        Ok(xtc)
    }
}

impl Penalties {
    fn resolve(given: &PenaltyOptions) -> Result<Self> {
        let penalties = Self {
            repetition: given.repetition.unwrap_or(1.0),
            frequency: given.frequency.unwrap_or(0.0),
            presence: given.presence.unwrap_or(0.0),
            window: given.window.unwrap_or(-1),
        };
        let Self { repetition, frequency, presence, window } = penalties;
        check("repetition_penalty", repetition, (1e-3..=1e3).contains(&repetition), "from 0.001 to 1000")?;
        check("frequency_penalty", frequency, (-100.0..=100.0).contains(&frequency), "from -100 to 100")?;
        check("presence_penalty", presence, (-100.0..=100.0).contains(&presence), "from -100 to 100")?;
        check_window("penalty_last_n", window)?;
        Ok(penalties)
    }

    /// Whether any of them changes a logit.
    pub fn is_on(&self) -> bool {
        self.window != 0 && (self.repeats() || self.frequency != 0.0 || self.presence != 0.0)
    }

    /// Returns true if the repetition penalty is on.
    #[expect(clippy::float_cmp, reason = "off is exactly this value")]
    pub(super) fn repeats(&self) -> bool {
        self.repetition != 1.0
    }
}

impl Dry {
    fn resolve(given: DryOptions) -> Result<Self> {
        let default_breakers = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        let dry = Self {
            multiplier: given.multiplier.unwrap_or(0.0),
            base: given.base.unwrap_or(1.75),
            allowed_length: given.allowed_length.unwrap_or(2),
            window: given.window.unwrap_or(-1),
            breakers: given.breakers.unwrap_or_else(default_breakers),
        };
        check("dry_multiplier", dry.multiplier, (0.0..=100.0).contains(&dry.multiplier), "from 0 to 100")?;
        check("dry_base", dry.base, (1.0..=100.0).contains(&dry.base), "from 1 to 100")?;
        if dry.allowed_length == 0 {
            return Err(Error::request("dry_allowed_length", "is 0; it must be 1 or more"));
        }
        check_window("dry_penalty_last_n", dry.window)?;
        let (most, longest) = MAX_BREAKERS;
        if dry.breakers.len() > most || dry.breakers.iter().any(|it| it.is_empty() || it.len() > longest) {
            let message = format!("must be at most {most} texts of 1 to {longest} bytes each");
            return Err(Error::request("dry_sequence_breakers", message));
        }
        Ok(dry)
    }

    /// Whether it changes a logit.
    pub fn is_on(&self) -> bool {
        self.multiplier > 0.0 && self.window != 0
    }
}

fn bias(mut given: Vec<(u32, f32)>) -> Result<Vec<(u32, f32)>> {
    if given.len() > MAX_BIASES {
        let message = format!("has {} entries; at most {MAX_BIASES} are allowed", given.len());
        return Err(Error::request("logit_bias", message));
    }
    for &(id, value) in &given {
        // Minus infinity bans a token, a common use of a bias.
        let valid = (-100.0..=100.0).contains(&value) || value == f32::NEG_INFINITY;
        check("logit_bias", value, valid, &format!("from -100 to 100 for token {id}, or minus infinity"))?;
    }
    given.sort_by_key(|entry| entry.0);
    match given.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Error::request("logit_bias", format!("names token {} twice", pair[0].0))),
        None => Ok(given),
    }
}

fn check(field: &'static str, value: f32, valid: bool, range: &str) -> Result<()> {
    if valid && !value.is_nan() && value != f32::INFINITY {
        Ok(())
    } else {
        Err(Error::request(field, format!("is {value}; it must be {range}")))
    }
}

fn check_window(field: &'static str, window: i64) -> Result<()> {
    if window >= -1 {
        return Ok(());
    }
    Err(Error::request(
        field,
        format!("is {window}; it must be -1 for the whole history, 0 for off, or a count"),
    ))
}

/// A seed that differs from run to run: a hash under the random keys that the standard library takes from the
/// operating system. Below 2^53, so that it survives a trip through JSON.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

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
