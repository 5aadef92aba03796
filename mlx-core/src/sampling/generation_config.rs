//! Sampling settings of a model: `generation_config.json`.

use super::options::SamplingOptions;
use super::params::SamplingParams;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::warnings::Warnings;

/// Sets one option to the number in the file.
type Put = fn(&mut SamplingOptions, f32);

/// The keys and their options.
const SETTINGS: [(&str, Put); 5] = [
    ("temperature", |options, value| options.temperature = Some(value)),
    ("typical_p", |options, value| options.typical_p = Some(value)),
    ("top_p", |options, value| options.top_p = Some(value)),
    ("min_p", |options, value| options.min_p = Some(value)),
    ("repetition_penalty", |options, value| options.penalties.repetition = Some(value)),
];

/// The consequence of a setting that cannot be used.
const UNUSED: &str = "this setting is not used";

impl SamplingOptions {
    /// Reads `generation_config.json`; `do_sample: false` is a temperature of 0. A setting that cannot be used gives a warning.
    pub(crate) fn read(fields: &Fields, warnings: &mut Warnings) -> Self {
        let mut options = Self { top_k: warnings.or_default(top_k(fields), UNUSED), ..Self::default() };
        for (key, put) in SETTINGS {
            let changed = with_setting(&options, fields, key, put);
            if let Some(changed) = warnings.or_default(changed, UNUSED) {
                options = changed;
            }
        }
        if warnings.or_default(fields.optional_flag("do_sample"), UNUSED) == Some(false) {
            options.temperature = Some(0.0);
        }
        options
    }
}

/// The options with the setting under `key`, if it is in the file.
fn with_setting(
    options: &SamplingOptions,
    fields: &Fields,
    key: &str,
    put: Put,
) -> Result<Option<SamplingOptions>> {
    let Some(number) = fields.optional_number(key)? else { return Ok(None) };
    let mut changed = options.clone();
    put(&mut changed, number as f32);
    SamplingParams::resolve(&changed, &SamplingOptions { seed: Some(0), ..SamplingOptions::default() })
        .map_err(|error| Error::file(fields.path(), error.to_string()))?;
    Ok(Some(changed))
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
