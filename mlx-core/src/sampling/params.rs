//! Validated sampler settings, and the stages with more than one setting.

use super::parameters::{PARAMETERS, SamplingOptions, SamplingParams};
use crate::error::{Error, Result};

/// The maximum number of alternative log-probabilities that a request may ask for at each position.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// The maximum number of sequence breakers, and the maximum bytes of one: all are searched for at every drawn token.
const MAX_BREAKERS: (usize, usize) = (64, 64);
/// The maximum number of entries of a logit bias.
const MAX_BIASES: usize = 4096;

/// Exclude top choices: with `probability`, removes all tokens of at least `threshold` except the least likely of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// The probability that it runs at a position; 0 is off.
    pub probability: f32,
    /// The minimum probability of a top choice.
    pub threshold: f32,
}

/// Penalties on tokens of the history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// The divisor of positive logits and factor of negative logits, for tokens of prompt and answer; 1 is off.
    pub repetition: f32,
    /// The amount subtracted from the logit for each time that a token was generated; 0 is off.
    pub frequency: f32,
    /// The amount subtracted from the logit if a token was generated; 0 is off.
    pub presence: f32,
    /// The number of last tokens that count; -1 is all, 0 none.
    pub window: i64,
}

/// The penalty on continuing a repeated sequence ("don't repeat yourself").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dry {
    /// The scale of the penalty; 0 is off.
    pub multiplier: f32,
    /// The factor by which the penalty grows with each repeated token.
    pub base: f32,
    /// The minimum length of a repeated sequence for the penalty.
    pub allowed_length: u32,
    /// The number of last tokens that count; -1 is all, 0 none.
    pub window: i64,
}

impl SamplingParams {
    /// Resolves each setting: the value of the request, else of the model, else temperature 1 and everything off.
    pub fn resolve(request: &SamplingOptions, model: &SamplingOptions) -> Result<Self> {
        let mut params = request.or(model).with_defaults();
        for parameter in PARAMETERS {
            parameter.check(&params)?;
        }
        check_breakers(&params.dry_sequence_breakers)?;
        params.logit_bias = checked_bias(params.logit_bias)?;
        Ok(params)
    }

    /// Returns true if filters have an effect. At temperature 0 they have none, since the likeliest token passes all of them.
    pub(super) fn filters(&self) -> bool {
        self.temperature != 0.0
    }

    /// The settings of XTC.
    pub fn xtc(&self) -> Xtc {
        Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold }
    }

    /// The penalties on repeated tokens.
    pub fn penalties(&self) -> Penalties {
        Penalties {
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            window: self.penalty_last_n,
        }
    }

    /// The penalty on repeated sequences.
    pub fn dry(&self) -> Dry {
        Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            window: self.dry_penalty_last_n,
        }
    }
}

impl Xtc {
    /// Returns true if it ever removes a token.
    pub fn is_on(&self) -> bool {
        self.probability > 0.0
    }
}

impl Penalties {
    /// Returns true if any penalty changes a logit.
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
    /// Returns true if it changes a logit.
    pub fn is_on(&self) -> bool {
        self.multiplier > 0.0 && self.window != 0
    }
}

fn check_breakers(breakers: &[String]) -> Result<()> {
    let (most, longest) = MAX_BREAKERS;
    if breakers.len() > most || breakers.iter().any(|it| it.is_empty() || it.len() > longest) {
        let message = format!("must be at most {most} texts of 1 to {longest} bytes each");
        return Err(Error::request("dry_sequence_breakers", message));
    }
    Ok(())
}

fn checked_bias(mut given: Vec<(u32, f32)>) -> Result<Vec<(u32, f32)>> {
    if given.len() > MAX_BIASES {
        let message = format!("has {} entries; at most {MAX_BIASES} are allowed", given.len());
        return Err(Error::request("logit_bias", message));
    }
    for &(id, value) in &given {
        // Minus infinity, a common bias, bans a token.
        if !(-100.0..=100.0).contains(&value) && value != f32::NEG_INFINITY {
            let message =
                format!("is {value}; it must be from -100 to 100 for token {id}, or minus infinity");
            return Err(Error::request("logit_bias", message));
        }
    }
    given.sort_by_key(|entry| entry.0);
    match given.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Error::request("logit_bias", format!("names token {} twice", pair[0].0))),
        None => Ok(given),
    }
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
        assert_eq!(
            (params.penalties(), params.penalties().is_on(), params.dry().is_on()),
            (off, false, false)
        );
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
            ("xtc_probability", |it| it.xtc_probability = Some(2.0)),
            ("xtc_threshold", |it| it.xtc_threshold = Some(-0.1)),
            ("repetition_penalty", |it| it.repetition_penalty = Some(0.0)),
            ("frequency_penalty", |it| it.frequency_penalty = Some(1e9)),
            ("penalty_last_n", |it| it.penalty_last_n = Some(-2)),
            ("dry_base", |it| it.dry_base = Some(0.5)),
            ("dry_sequence_breakers", |it| it.dry_sequence_breakers = Some(vec![String::new()])),
            ("logit_bias", |it| it.logit_bias = vec![(3, 1.0), (3, 2.0)]),
        ];
        for (field, change) in cases {
            let message = with(change);
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
