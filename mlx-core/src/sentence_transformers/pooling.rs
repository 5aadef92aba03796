//! The config of a pooling module, in the format of sentence-transformers 5.4 and later, or the older one.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::Fields;
use crate::error::Result;

/// The pooling of a text's hidden states into its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first state.
    Cls,
    /// The maximum of each element.
    Max,
    /// The mean of all states.
    Mean,
    /// The sum of all states, divided by the square root of their number.
    MeanSqrtLen,
    /// The mean of all states, weighted with their positions, from 1.
    WeightedMean,
    /// The last state.
    Last,
}

impl Pooling {
    /// Returns the name that sentence-transformers gives it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(.., mode)| *mode == self).map_or("", |(name, ..)| name)
    }
}

/// One or several poolings. The vector of a text is their concatenation, in the order of [`Pooling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poolings(u8);

impl Poolings {
    /// Returns the poolings in order.
    pub fn modes(self) -> impl Iterator<Item = Pooling> {
        ORDER.into_iter().filter(move |mode| self.0 & bit(*mode) != 0)
    }

    /// Returns the number of poolings.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl From<Pooling> for Poolings {
    fn from(mode: Pooling) -> Self {
        Self(bit(mode))
    }
}

impl FromIterator<Pooling> for Poolings {
    /// Collects the poolings. Without any, the pooling is the mean.
    fn from_iter<I: IntoIterator<Item = Pooling>>(modes: I) -> Self {
        let bits = modes.into_iter().fold(0, |bits, mode| bits | bit(mode));
        if bits == 0 { Pooling::Mean.into() } else { Self(bits) }
    }
}

/// The order of vectors in a concatenation.
const ORDER: [Pooling; 6] =
    [Pooling::Cls, Pooling::Max, Pooling::Mean, Pooling::MeanSqrtLen, Pooling::WeightedMean, Pooling::Last];

fn bit(mode: Pooling) -> u8 {
    1 << mode as u8
}

/// The names in the new and the old format.
const NAMES: [(&str, &str, Pooling); 6] = [
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
    ("max", "pooling_mode_max_tokens", Pooling::Max),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
];

/// Reads the config of a pooling module. Returns its modes, and true if it also pools the tokens of prompts.
pub(super) fn read(path: &Path) -> Result<(Poolings, bool)> {
    let fields = Fields::read(path)?;
    let include_prompt = fields.optional_flag("include_prompt")?.unwrap_or(true);
    let modes = if fields.has("pooling_mode") { named(&fields)? } else { flagged(&fields)? };
    Ok((modes.into_iter().collect(), include_prompt))
}

/// Reads the modes under `pooling_mode`: a name or a list of names.
fn named(fields: &Fields) -> Result<Vec<Pooling>> {
    let names = match fields.optional_text("pooling_mode") {
        Ok(name) => name.map(str::to_owned).into_iter().collect(),
        Err(_) => fields.strings("pooling_mode")?,
    };
    let mode = |name: String| {
        let known = NAMES.iter().find(|(own, ..)| *own == name);
        known.map(|(.., pooling)| *pooling).ok_or_else(|| {
            let names = NAMES.map(|(own, ..)| own).join(", ");
            fields.error("pooling_mode", format!("is {name:?}; it must be one of {names}"))
        })
    };
    names.into_iter().map(mode).collect()
}

/// Returns the modes with a true flag.
fn flagged(fields: &Fields) -> Result<Vec<Pooling>> {
    let mut modes = Vec::new();
    for (_, flag, pooling) in NAMES {
        if fields.optional_flag(flag)? == Some(true) {
            modes.push(pooling);
        }
    }
    Ok(modes)
}
