//! The config of a pooling module, in the format of sentence-transformers 5.4 and later, or the older one.

use std::path::Path;

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

/// The names in the new and the old format.
const NAMES: [(&str, &str, Pooling); 6] = [
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
    ("max", "pooling_mode_max_tokens", Pooling::Max),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
];

/// Reads the config of a pooling module. Returns its mode, and true if it also pools the tokens of prompts.
pub(super) fn read(path: &Path) -> Result<(Pooling, bool)> {
    let fields = Fields::read(path)?;
    let include_prompt = fields.optional_flag("include_prompt")?.unwrap_or(true);
    let modes = if fields.has("pooling_mode") { named(&fields)? } else { flagged(&fields)? };
    match modes.as_slice() {
        [] => Ok((Pooling::Mean, include_prompt)),
        [only] => Ok((*only, include_prompt)),
        modes => {
            let message = format!("has {} modes; only one is supported", modes.len());
            Err(fields.error("pooling_mode", message))
        }
    }
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
