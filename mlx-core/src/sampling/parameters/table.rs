//! The table of sampling parameters, and the struct fields generated from its rows. To add a parameter, add a row here.

use serde::{Deserialize, Serialize};

use super::{Group, Kind, Parameter, Range, Scalar};
use crate::sampling::noise::random_seed;

/// The default texts that end repeated sequences.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Defines the options of a request, the validated settings, and the table. A row consists of `name: type = default`, its help text and
/// fields of [`Parameter`].
macro_rules! parameters {
    ($($name:ident: $type:ty = $default:literal, $help:literal, { $($field:ident: $value:expr),* $(,)? } of $base:ident;)*) => {
        /// Settings of a request or of a model. A missing value comes from the next source: the request, then the model's
        /// `generation_config.json`, then [`SamplingDefaults`](crate::sampling::SamplingDefaults).
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        pub struct SamplingOptions {
            $(#[doc = $help] pub $name: Option<$type>,)*
            /// Texts that end repeated sequences
            pub dry_sequence_breakers: Option<Vec<String>>,
            /// Values to add to the logits of tokens
            pub logit_bias: Vec<(u32, f32)>,
            /// Seed of the random draws; by default, from the operating system
            pub seed: Option<u64>,
        }

        impl SamplingOptions {
            /// Returns these settings, with missing values from `other`.
            #[must_use]
            pub fn or(&self, other: &Self) -> Self {
                let bias = if self.logit_bias.is_empty() { &other.logit_bias } else { &self.logit_bias };
                let breakers = self.dry_sequence_breakers.as_ref().or(other.dry_sequence_breakers.as_ref());
                Self {
                    $($name: self.$name.or(other.$name),)*
                    dry_sequence_breakers: breakers.cloned(),
                    logit_bias: bias.clone(),
                    seed: self.seed.or(other.seed),
                }
            }

            /// Fills in the defaults. Does not check ranges.
            pub(in crate::sampling) fn with_defaults(self) -> SamplingParams {
                let breakers = || BREAKERS.map(str::to_owned).to_vec();
                SamplingParams {
                    $($name: self.$name.unwrap_or($default),)*
                    dry_sequence_breakers: self.dry_sequence_breakers.unwrap_or_else(breakers),
                    logit_bias: self.logit_bias,
                    seed: self.seed.unwrap_or_else(random_seed),
                }
            }
        }

        /// Validated settings, as the sampler uses them.
        #[derive(Debug, Clone, PartialEq)]
        pub struct SamplingParams {
            $(#[doc = $help] pub $name: $type,)*
            /// Texts that end repeated sequences
            pub dry_sequence_breakers: Vec<String>,
            /// Values to add to the logits of tokens, in order of ids
            pub logit_bias: Vec<(u32, f32)>,
            /// Seed of the random draws
            pub seed: u64,
        }

        /// All numeric parameters except the seed, in display order.
        pub static PARAMETERS: &[Parameter] = &[$(
            Parameter {
                name: stringify!($name),
                help: $help,
                kind: <$type as Scalar>::KIND,
                default: || { let default: $type = $default; default.number() },
                get: |options| options.$name.map(Scalar::number),
                set: |options, value| options.$name = value.map(Scalar::of),
                value: |params| params.$name.number(),
                text: |params| params.$name.to_string(),
                $($field: $value,)*
                ..$base
            },
        )*];
    };
}

const SAMPLING: Parameter = Parameter {
    name: "",
    help: "",
    kind: Kind::Float,
    range: Range::Between(0.0, 1.0),
    off: None,
    group: Group::Sampling,
    example: 0.5,
    value_name: "P",
    flag_alias: None,
    ollama: None,
    checkpoint: None,
    default: || 0.0,
    is_on: |_| true,
    get: |_| None,
    set: |_, _| {},
    value: |_| 0.0,
    text: |_| String::new(),
};
const PENALTIES: Parameter =
    Parameter { range: Range::Between(-100.0, 100.0), group: Group::Penalties, ..SAMPLING };
const DRY: Parameter = Parameter { group: Group::Dry, is_on: |it| it.dry().is_on(), ..SAMPLING };

parameters! {
    temperature: f32 = 1.0, "Randomness: 0 always takes the likeliest token", {
        range: Range::From(0.0),
        value_name: "T",
        flag_alias: Some("temp"),
        ollama: Some("temperature"),
        checkpoint: Some("temperature"),
    } of SAMPLING;

    top_k: u32 = 0, "Draw from this many of the likeliest tokens; 0 is off", {
        range: Range::From(0.0),
        off: Some(0.0),
        is_on: |it| it.filters() && it.top_k > 0,
        example: 40.0,
        value_name: "K",
        ollama: Some("top_k"),
        checkpoint: Some("top_k"),
    } of SAMPLING;

    typical_p: f32 = 1.0, "Draw from the most typical tokens with this total probability; 1 is off", {
        off: Some(1.0),
        is_on: |it| it.filters() && it.typical_p < 1.0,
        example: 0.9,
        flag_alias: Some("typical"),
        ollama: Some("typical_p"),
        checkpoint: Some("typical_p"),
    } of SAMPLING;

    top_p: f32 = 1.0, "Draw from the likeliest tokens with this total probability; 1 is off", {
        off: Some(1.0),
        is_on: |it| it.filters() && it.top_p < 1.0,
        example: 0.9,
        ollama: Some("top_p"),
        checkpoint: Some("top_p"),
    } of SAMPLING;

    min_p: f32 = 0.0, "Never draw a token less likely than this share of the likeliest; 0 is off", {
        off: Some(0.0),
        is_on: |it| it.filters() && it.min_p > 0.0,
        example: 0.05,
        ollama: Some("min_p"),
        checkpoint: Some("min_p"),
    } of SAMPLING;

    xtc_probability: f32 = 0.0, "Probability of excluding the likeliest tokens (XTC); 0 is off", {
        off: Some(0.0),
        is_on: |it| it.filters() && it.xtc().is_on(),
    } of SAMPLING;

    xtc_threshold: f32 = 0.1, "XTC excludes only tokens that are at least this likely", {
        is_on: |it| it.filters() && it.xtc().is_on(),
        example: 0.2,
    } of SAMPLING;

    repetition_penalty: f32 = 1.0, "Penalize tokens of prompt and answer: divide positive logits by this, multiply negative ones; 1 is off", {
        range: Range::Between(0.001, 1000.0),
        off: Some(1.0),
        is_on: |it| it.penalties().repeats(),
        example: 1.1,
        value_name: "R",
        flag_alias: Some("repeat-penalty"),
        ollama: Some("repeat_penalty"),
        checkpoint: Some("repetition_penalty"),
    } of PENALTIES;

    frequency_penalty: f32 = 0.0, "Lower a token's logit by this for each time it was generated; 0 is off", {
        off: Some(0.0),
        is_on: |it| it.frequency_penalty != 0.0,
        value_name: "F",
        ollama: Some("frequency_penalty"),
    } of PENALTIES;

    presence_penalty: f32 = 0.0, "Lower a token's logit by this if it was generated; 0 is off", {
        off: Some(0.0),
        is_on: |it| it.presence_penalty != 0.0,
        ollama: Some("presence_penalty"),
    } of PENALTIES;

    penalty_last_n: i64 = -1, "Number of last tokens for repetition, frequency and presence penalties; -1 is all, 0 none", {
        range: Range::Window,
        off: Some(0.0),
        is_on: |it| it.penalties().is_on(),
        example: 64.0,
        value_name: "N",
        flag_alias: Some("repeat-last-n"),
        ollama: Some("repeat_last_n"),
    } of PENALTIES;

    dry_multiplier: f32 = 0.0, "Scale of the penalty on repeated sequences (DRY); 0 is off", {
        range: Range::Between(0.0, 100.0),
        off: Some(0.0),
        example: 0.8,
        value_name: "M",
    } of DRY;

    dry_base: f32 = 1.75, "Growth of the DRY penalty with each repeated token", {
        range: Range::Between(1.0, 100.0),
        example: 1.5,
        value_name: "B",
    } of DRY;

    dry_allowed_length: u32 = 2, "DRY penalizes repeated sequences of at least this many tokens", {
        range: Range::From(1.0),
        example: 3.0,
        value_name: "N",
    } of DRY;

    dry_penalty_last_n: i64 = -1, "Number of last tokens that DRY searches; -1 is all, 0 none", {
        range: Range::Window,
        off: Some(0.0),
        example: 64.0,
        value_name: "N",
    } of DRY;
}
