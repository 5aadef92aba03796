//! Sampling settings of a model: `generation_config.json`.

use std::path::Path;

use mlx_files::Warnings;

use super::options::SamplingOptions;
use super::params::SamplingParams;
use crate::config::Fields;
use crate::error::{Error, Result};

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
    /// Reads the values of the checkpoint in a folder; one without the file sets none. [`ModelFolder`](crate::ModelFolder) has the warnings.
    pub fn of_checkpoint(folder: &Path) -> Self {
        let fields = Fields::read_optional(&folder.join("generation_config.json"));
        let read = |fields: Fields| Self::read(&fields, &mut Warnings::default());
        fields.ok().flatten().map(read).unwrap_or_default()
    }

    /// Reads the values of `generation_config.json` as transformers means them. A setting that cannot be used gives a warning.
    pub(crate) fn read(fields: &Fields, warnings: &mut Warnings) -> Self {
        let mut options = Self { top_k: warnings.or_default(top_k(fields), UNUSED), ..Self::default() };
        for (key, put) in SETTINGS {
            let changed = with_setting(&options, fields, key, put);
            if let Some(changed) = warnings.or_default(changed, UNUSED) {
                options = changed;
            }
        }
        options.completed(warnings.or_default(fields.optional_flag("do_sample"), UNUSED))
    }

    /// Adds what the values and `do_sample` imply. `do_sample: false` is a temperature of 0. A checkpoint that samples, or that sets a
    /// temperature or a filter, has chosen its sampling: the others are 1 and off, as in transformers, and not the defaults of a front
    /// end. Transformers' default top_k of 50 is not added.
    fn completed(self, do_sample: Option<bool>) -> Self {
        let Self { temperature, top_k, typical_p, top_p, min_p, .. } = self;
        let has_floats = [temperature, typical_p, top_p, min_p].iter().any(Option::is_some);
        let chosen = Self {
            temperature: Some(1.0),
            top_k: Some(0),
            typical_p: Some(1.0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            ..Self::default()
        };
        match do_sample {
            Some(false) => Self { temperature: Some(0.0), ..self },
            Some(true) => self.or(&chosen),
            None if has_floats || top_k.is_some() => self.or(&chosen),
            None => self,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SamplingDefaults, settings};

    /// Returns temperature, top_p and min_p with their sources, as a chat uses them with this file.
    fn in_a_chat(file: &str) -> String {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, file).expect("it can be written");
        let checkpoint = SamplingOptions::of_checkpoint(folder.path());
        let all = settings(&SamplingOptions::default(), &checkpoint, SamplingDefaults::Chat).expect("valid");
        let shown = all.iter().filter(|it| ["temperature", "top_p", "min_p"].contains(&it.name));
        shown.map(|it| format!("{} {}", it.value, it.source.as_str())).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_checkpoint_that_chooses_its_sampling_gets_no_filter_beside_its_own() {
        for (file, expected) in [
            (r#"{"eos_token_id": 2}"#, "0.8 default, 1 default, 0.05 default"),
            (r#"{"repetition_penalty": 1.1}"#, "0.8 default, 1 default, 0.05 default"),
            (r#"{"do_sample": true}"#, "1 checkpoint, 1 checkpoint, 0 checkpoint"),
            (r#"{"top_p": 0.9}"#, "1 checkpoint, 0.9 checkpoint, 0 checkpoint"),
            (r#"{"temperature": 0.6}"#, "0.6 checkpoint, 1 checkpoint, 0 checkpoint"),
            (r#"{"do_sample": true, "min_p": 0.1}"#, "1 checkpoint, 1 checkpoint, 0.1 checkpoint"),
            (r#"{"do_sample": false}"#, "0 checkpoint, 1 default, 0.05 default"),
            (r#"{"do_sample": false, "temperature": 0.6}"#, "0 checkpoint, 1 default, 0.05 default"),
        ] {
            assert_eq!(in_a_chat(file), expected, "{file}");
        }
    }
}
