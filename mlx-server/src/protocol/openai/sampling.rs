//! The sampling fields of a request. docs/sampling.md has their meanings, ranges and defaults.

use std::collections::BTreeMap;

use mlx_core::sampling::{DryOptions, PenaltyOptions, SamplingOptions, XtcOptions};
use mlx_json::Number;

use crate::error::ApiError;
use crate::field_value;
use crate::fields::{Fields, field_group};

field_group! {
    /// How tokens are sampled.
    pub(crate) struct SamplingFields {
        /// Randomness; 0 always takes the likeliest token.
        #[schema(minimum = 0, example = 0.5)]
        pub(crate) temperature: f32,
        /// Draw from the fewest tokens that are this likely together.
        #[schema(minimum = 0, maximum = 1, example = 0.9)]
        pub(crate) top_p: f32,
        /// Draw from this many of the likeliest tokens; 0 is off.
        #[schema(example = 40)]
        pub(crate) top_k: u32,
        /// Never draw a token less likely than this share of the likeliest.
        #[schema(minimum = 0, maximum = 1, example = 0.05)]
        pub(crate) min_p: f32,
        /// Draw from the most typical tokens that are this likely together.
        #[schema(minimum = 0, maximum = 1, example = 0.9)]
        pub(crate) typical_p: f32,
        /// How often the likeliest tokens are excluded.
        #[schema(minimum = 0, maximum = 1, example = 0.5)]
        pub(crate) xtc_probability: f32,
        /// How likely a token must be to be excluded.
        #[schema(minimum = 0, maximum = 1, example = 0.2)]
        pub(crate) xtc_threshold: f32,
        /// The same seed gives the same tokens. A negative one counts from 2^64 down.
        #[schema(value_type = i64, example = 7)]
        pub(crate) seed: Number,
        /// Added to the logits of tokens, by token id.
        #[schema(example = json!({"5": -1.5}))]
        pub(crate) logit_bias: BTreeMap<String, f32>,
    }
}

field_group! {
    /// Penalties on repetition.
    pub(crate) struct PenaltyFields {
        /// Subtracted from a token's logit for each time it was generated.
        #[schema(minimum = -100, maximum = 100, example = 0.5)]
        pub(crate) frequency_penalty: f32,
        /// Subtracted from a token's logit if it was generated.
        #[schema(minimum = -100, maximum = 100, example = 0.5)]
        pub(crate) presence_penalty: f32,
        /// Divides positive and multiplies negative logits of tokens of prompt and answer; 1 is off.
        #[schema(minimum = 0.001, maximum = 1000, example = 1.1)]
        pub(crate) repetition_penalty: f32,
        /// How many of the last tokens the three penalties count; -1 is all, 0 none.
        #[schema(minimum = -1, example = 64)]
        pub(crate) penalty_last_n: i64,
        /// Scale of the penalty on repeated sequences; 0 is off.
        #[schema(minimum = 0, maximum = 100, example = 0.8)]
        pub(crate) dry_multiplier: f32,
        /// Growth of that penalty with each repeated token.
        #[schema(minimum = 1, maximum = 100, example = 1.5)]
        pub(crate) dry_base: f32,
        /// Sequences shorter than this repeat freely.
        #[schema(minimum = 1, example = 3)]
        pub(crate) dry_allowed_length: u32,
        /// How many of the last tokens that penalty counts; -1 is all, 0 none.
        #[schema(minimum = -1, example = 64)]
        pub(crate) dry_penalty_last_n: i64,
        /// Texts that no repeated sequence reaches across.
        #[schema(example = json!(["\n"]))]
        pub(crate) dry_sequence_breakers: Vec<String>,
    }
}

/// Takes all sampling fields of a request.
pub(crate) fn read(fields: &mut Fields) -> Result<SamplingOptions, ApiError> {
    let sampling = SamplingFields::read(fields)?;
    let penalties = PenaltyFields::read(fields)?;
    Ok(SamplingOptions {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        typical_p: sampling.typical_p,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        xtc: XtcOptions { probability: sampling.xtc_probability, threshold: sampling.xtc_threshold },
        penalties: PenaltyOptions {
            repetition: penalties.repetition_penalty,
            frequency: penalties.frequency_penalty,
            presence: penalties.presence_penalty,
            window: penalties.penalty_last_n,
        },
        dry: DryOptions {
            multiplier: penalties.dry_multiplier,
            base: penalties.dry_base,
            allowed_length: penalties.dry_allowed_length,
            window: penalties.dry_penalty_last_n,
            breakers: penalties.dry_sequence_breakers,
        },
        logit_bias: bias(sampling.logit_bias.unwrap_or_default())?,
        seed: sampling.seed.map(|seed| whole(&seed)).transpose()?,
    })
}

fn bias(given: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>, ApiError> {
    let entry = |(id, bias): (String, f32)| {
        let wrong = || ApiError::field("logit_bias", format!("has the key {id:?}; keys must be token ids"));
        id.parse().map(|id| (id, bias)).map_err(|_| wrong())
    };
    given.into_iter().map(entry).collect()
}

fn whole(seed: &Number) -> Result<u64, ApiError> {
    let whole = field_value::whole(seed);
    let seed_of =
        |whole: i128| u64::try_from(whole).ok().or_else(|| Some(i64::try_from(whole).ok()?.cast_unsigned()));
    whole
        .and_then(seed_of)
        .ok_or_else(|| ApiError::field("seed", format!("is {seed}; it must be a 64-bit whole number")))
}
