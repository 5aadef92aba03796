//! Default values of sampling parameters, and the source of each value in use. Invariant: only this file has defaults that differ
//! between front ends. All others are in the table of parameters.

use serde::{Deserialize, Serialize};

use super::parameters::{PARAMETERS, Parameter, SamplingOptions, SamplingParams};
use crate::error::Result;

/// The values that apply if neither the request nor the checkpoint sets one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplingDefaults {
    /// The defaults of OpenAI: temperature 1 and no filters.
    #[default]
    OpenAi,
    /// Defaults for chats. They rarely draw unlikely tokens, which small models need.
    Chat,
    /// The defaults that Ollama documents.
    Ollama,
}

impl SamplingDefaults {
    /// Returns the values that differ from off.
    pub fn options(self) -> SamplingOptions {
        let off = SamplingOptions::default();
        match self {
            Self::OpenAi => off,
            Self::Chat => SamplingOptions { temperature: Some(0.8), min_p: Some(0.05), ..off },
            Self::Ollama => SamplingOptions {
                temperature: Some(0.8),
                top_k: Some(40),
                top_p: Some(0.9),
                penalty_last_n: Some(64),
                ..off
            },
        }
    }
}

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The request sets it.
    Request,
    /// `generation_config.json` sets it.
    Checkpoint,
    /// Neither sets it.
    Default,
}

impl Source {
    /// Returns the name for output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Checkpoint => "checkpoint",
            Self::Default => "default",
        }
    }
}

/// A parameter and the value that applies to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The public name.
    pub name: &'static str,
    /// The value as a JSON number.
    pub value: String,
    /// The origin of the value.
    pub source: Source,
    /// True if the value has no effect: the parameter, or the feature that it belongs to, is off.
    pub is_off: bool,
}

/// Lists all numeric parameters of a request except the seed, with their values and sources.
pub fn settings(
    request: &SamplingOptions,
    checkpoint: &SamplingOptions,
    defaults: SamplingDefaults,
) -> Result<Vec<Setting>> {
    let params = SamplingParams::resolve(request, &checkpoint.or(&defaults.options()))?;
    let setting = |parameter: &Parameter| {
        let is_set = |options: &SamplingOptions| parameter.get(options).is_some();
        let source = match (is_set(request), is_set(checkpoint)) {
            (true, _) => Source::Request,
            (false, true) => Source::Checkpoint,
            (false, false) => Source::Default,
        };
        let (value, is_off) = (parameter.text(&params), !parameter.is_on(&params));
        Setting { name: parameter.name, value, source, is_off }
    };
    Ok(PARAMETERS.iter().map(setting).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value and the source of a parameter.
    fn one(all: &[Setting], name: &str) -> (String, &'static str) {
        let found = all.iter().find(|it| it.name == name).expect("it is listed");
        (found.value.clone(), found.source.as_str())
    }

    #[test]
    fn each_value_has_the_source_that_it_came_from() {
        let request = SamplingOptions { top_p: Some(0.5), ..SamplingOptions::default() };
        let checkpoint = SamplingOptions { temperature: Some(0.6), ..SamplingOptions::default() };
        let all = settings(&request, &checkpoint, SamplingDefaults::Chat).expect("valid");
        assert_eq!(one(&all, "top_p"), ("0.5".into(), "request"));
        assert_eq!(one(&all, "temperature"), ("0.6".into(), "checkpoint"));
        assert_eq!(one(&all, "min_p"), ("0.05".into(), "default"));
        let off: Vec<&str> = all.iter().filter(|it| !it.is_off).map(|it| it.name).collect();
        assert_eq!(off, ["temperature", "top_p", "min_p"]);
    }

    #[test]
    fn front_ends_have_defaults_of_their_own() {
        let none = SamplingOptions::default();
        let drawn = |defaults| {
            let all = settings(&none, &none, defaults).expect("valid");
            ["temperature", "top_k", "top_p", "min_p", "penalty_last_n"].map(|name| one(&all, name).0)
        };
        assert_eq!(drawn(SamplingDefaults::OpenAi), ["1", "0", "1", "0", "-1"]);
        assert_eq!(drawn(SamplingDefaults::Chat), ["0.8", "0", "1", "0.05", "-1"]);
        assert_eq!(drawn(SamplingDefaults::Ollama), ["0.8", "40", "0.9", "0", "64"]);
    }
}
