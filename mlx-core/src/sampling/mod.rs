//! Sampling. Invariant: only [`Sampler::draw`] draws tokens, for every front end. `docs/sampling.md` defines all numbers.

mod chain;
mod constraint;
mod defaults;
mod dry;
mod filters;
mod generation_config;
mod history;
mod logprobs;
mod math;
mod noise;
mod parallel_draw;
mod parameters;
mod params;
mod penalties;
pub(crate) mod pending_draw;
mod sampler;
mod scan;
mod scratch;
mod state;

pub use constraint::{Constraint, TokenMask};
pub use defaults::{SamplingDefaults, Setting, Source, settings};
pub use dry::{Breakers, TokenText};
pub use history::{Cursor, Since, TokenHistory};
pub use logprobs::{TokenLogprob, score};
pub use noise::{Stream, choice_seed, random_seed, uniform};
pub use parameters::{Group, Kind, PARAMETERS, Parameter, Range, SamplingOptions, SamplingParams};
pub use params::{Dry, MAX_TOP_LOGPROBS, Penalties, Xtc};
pub use sampler::{Draw, DrawRequest, Sampler, TokenTable};
pub use scratch::Scratch;
