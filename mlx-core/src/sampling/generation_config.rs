//! The sampling settings of a model, from `generation_config.json`.

use std::path::Path;

use mlx_files::Warnings;

use super::parameters::{Group, Kind, PARAMETERS, Parameter, SamplingOptions};
use crate::config::Fields;
use crate::error::{Error, Result};

/// The consequence of an invalid setting, for warnings.
const UNUSED: &str = "this setting is ignored";

impl SamplingOptions {
    /// Reads the values of the checkpoint in a folder. Without the file, no value is set. [`ModelFolder`](crate::ModelFolder) has the warnings.
    pub fn of_checkpoint(folder: &Path) -> Self {
        let fields = Fields::read_optional(&folder.join("generation_config.json"));
        let read = |fields: Fields| Self::read(&fields, &mut Warnings::default());
        fields.ok().flatten().map(read).unwrap_or_default()
    }

    /// Reads the values of `generation_config.json` with the semantics of transformers. An invalid setting causes a warning.
    pub(crate) fn read(fields: &Fields, warnings: &mut Warnings) -> Self {
        let mut options = Self::default();
        for parameter in PARAMETERS {
            let changed = with_setting(&options, fields, parameter);
            if let Some(changed) = warnings.or_default(changed, UNUSED) {
                options = changed;
            }
        }
        options.completed(warnings.or_default(fields.optional_flag("do_sample"), UNUSED))
    }

    /// Adds the values that the others and `do_sample` imply. `do_sample: false` means a temperature of 0. If the checkpoint samples, or sets
    /// a temperature or a filter, the missing values are temperature 1 and filters off, as in transformers, instead of a front end's
    /// defaults. Transformers' default top_k of 50 is not added.
    fn completed(self, do_sample: Option<bool>) -> Self {
        let is_choice = |it: &&Parameter| it.group == Group::Sampling && it.checkpoint.is_some();
        let mut chosen = Self::default();
        for parameter in PARAMETERS.iter().filter(is_choice) {
            parameter.set(&mut chosen, Some(parameter.default()));
        }
        match do_sample {
            Some(false) => Self { temperature: Some(0.0), ..self },
            Some(true) => self.or(&chosen),
            None if PARAMETERS.iter().filter(is_choice).any(|it| it.get(&self).is_some()) => self.or(&chosen),
            None => self,
        }
    }
}

/// Returns the options with the file's value of a parameter, if the file has one.
fn with_setting(
    options: &SamplingOptions,
    fields: &Fields,
    parameter: &Parameter,
) -> Result<Option<SamplingOptions>> {
    let Some(key) = parameter.checkpoint else { return Ok(None) };
    let Some(mut number) = fields.optional_number(key)? else { return Ok(None) };
    if parameter.kind == Kind::Count {
        if number.fract() != 0.0 || number < -1.0 {
            return Err(fields.error(key, format_args!("is {number}; it must be a whole number")));
        }
        // Some exports write -1 for "off".
        number = number.max(0.0);
    }
    let mut changed = options.clone();
    parameter.set(&mut changed, Some(number));
    let checked = parameter.check(&changed.clone().with_defaults());
    checked.map_err(|error| Error::file(fields.path(), error.to_string()))?;
    Ok(Some(changed))
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
    fn every_parameter_with_a_key_is_read() {
        for parameter in PARAMETERS {
            let Some(key) = parameter.checkpoint else { continue };
            let folder = tempfile::tempdir().expect("a temporary folder");
            let file = format!("{{\"{key}\": {}}}", parameter.example);
            std::fs::write(folder.path().join("generation_config.json"), file).expect("it can be written");
            let value = parameter.get(&SamplingOptions::of_checkpoint(folder.path())).expect("it is read");
            assert!((value - parameter.example).abs() < 1e-6, "{key}");
        }
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
