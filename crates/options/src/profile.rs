//! Profiles: names for a model with settings for its chats. Both programs read them from a TOML file, whose keys are the flags of `mlx chat`.

mod file;
mod values;

use std::path::{Path, PathBuf};

use chat_format::Thinking;
use mlx_core::chat::ContextPolicy;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::{PARAMETERS, Parameter, SamplingOptions};
use mlx_hub::expanded;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

use crate::closest;
pub use file::read_profiles;

/// The keys besides the sampling parameters.
const KEYS: [&str; 12] = [
    "name",
    "model",
    "adapter",
    "system",
    "think",
    "think-budget",
    "context-policy",
    "max-tokens",
    "stop",
    "seed",
    "logit-bias",
    "dry-sequence-breaker",
];

/// A name for a model, with settings for its chats. A value of the request itself takes precedence over each of them.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// The name.
    pub name: String,
    /// The model: a name that `mlx list` shows, or the path of a folder or a GGUF file.
    pub model: String,
    /// The folder or the name of the model's adapter.
    pub adapter: Option<PathBuf>,
    /// The system prompt of conversations without one.
    pub system: Option<String>,
    /// The reasoning.
    pub think: Option<Thinking>,
    /// The maximum number of tokens in thoughts.
    pub think_budget: Option<usize>,
    /// The policy for conversations that exceed the context.
    pub context_policy: Option<ContextPolicy>,
    /// The maximum number of generated tokens.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// The sampling parameters.
    pub sampling: SamplingOptions,
    /// The line of its name in the file.
    pub line: usize,
    /// The keys and values that it was read from.
    entries: Table,
}

/// Profiles are equal if their keys and values are.
impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// A key that cannot be used, and the reason as the rest of a sentence that begins with the key.
struct Fault {
    key: String,
    reason: String,
}

impl Profile {
    /// Reads the keys of a table, in this order.
    fn read(entries: impl IntoIterator<Item = (String, Value)>) -> Result<Self, Fault> {
        let mut profile = Self::default();
        for (key, value) in entries {
            let set = profile.set(&key, &value).and_then(|()| profile.check());
            set.map_err(|reason| Fault { key: key.clone(), reason })?;
            profile.entries.insert(key, value);
        }
        for (key, text) in [("name", &profile.name), ("model", &profile.model)] {
            if text.is_empty() {
                let reason = "is missing; give each profile a name and a model".to_owned();
                return Err(Fault { key: key.to_owned(), reason });
            }
        }
        Ok(profile)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "name" => self.name = values::name(value)?,
            "model" => self.model = values::text(value)?,
            "adapter" => self.adapter = Some(values::text(value)?.into()),
            "system" => self.system = Some(values::text(value)?),
            "think" => self.think = Some(values::word(value, "on, off, auto, low, medium or high")?),
            "think-budget" => self.think_budget = Some(values::count(value, 0)?),
            "context-policy" => {
                self.context_policy = Some(values::word(value, "evict-turns, slide or stop")?);
            }
            "max-tokens" => self.max_tokens = Some(values::count(value, 1)?),
            "stop" => self.stop = values::texts(value)?,
            "seed" => self.sampling.seed = Some(values::count(value, 0)?),
            "logit-bias" => self.sampling.logit_bias = values::bias(value)?,
            "dry-sequence-breaker" => self.sampling.dry_sequence_breakers = Some(values::texts(value)?),
            other => {
                let parameter = PARAMETERS.iter().find(|it| it.flag() == other);
                let parameter = parameter.ok_or_else(|| unknown(other))?;
                parameter.set(&mut self.sampling, Some(values::number(value, parameter)?));
            }
        }
        Ok(())
    }

    /// Checks the ranges of the values. An error is the reason without the name of the parameter.
    fn check(&self) -> Result<(), String> {
        self.over(RequestOptions::default()).check().map_err(|error| match error {
            mlx_core::Error::Request { message, .. } => message,
            other => other.to_string(),
        })
    }

    /// Returns these options, with the profile's values where they have none.
    #[must_use]
    pub fn over(&self, options: RequestOptions) -> RequestOptions {
        RequestOptions {
            sampling: options.sampling.or(&self.sampling),
            max_tokens: options.max_tokens.or(self.max_tokens),
            think_budget: options.think_budget.or(self.think_budget),
            stop: if options.stop.is_empty() { self.stop.clone() } else { options.stop },
            ..options
        }
    }

    /// Makes the paths absolute. They are relative to `folder`. A model or an adapter without a file there is a name, unless it is written
    /// as a path.
    fn locate(&mut self, folder: &Path) {
        let located = |given: &str| {
            let path = folder.join(expanded(Path::new(given)));
            let is_path = given.starts_with(['.', '/', '~', '$']) || path.exists();
            is_path.then_some(path)
        };
        if let Some(path) = located(&self.model).as_ref().and_then(|path| path.to_str()) {
            path.clone_into(&mut self.model);
        }
        if let Some(path) = self.adapter.as_ref().and_then(|given| located(given.to_str()?)) {
            self.adapter = Some(path);
        }
    }
}

/// The record of a profile has the keys and values of the file.
impl Serialize for Profile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = self.entries.clone();
        if let Some(Value::Table(biases)) = entries.get_mut("logit-bias") {
            for (_, bias) in biases.iter_mut() {
                if bias.as_float().is_some_and(f64::is_infinite) {
                    *bias = Value::String(bias.to_string());
                }
            }
        }
        entries.serialize(serializer)
    }
}

/// Reads a record. Its paths stay unchanged.
impl<'de> Deserialize<'de> for Profile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Table::deserialize(deserializer)?;
        let about = |Fault { key, reason }| serde::de::Error::custom(format!("{key} {reason}"));
        Self::read(entries).map_err(about)
    }
}

/// Returns the names of all keys.
fn keys() -> Vec<String> {
    KEYS.into_iter().map(str::to_owned).chain(PARAMETERS.iter().map(Parameter::flag)).collect()
}

fn unknown(key: &str) -> String {
    let keys = keys();
    match closest(key, keys.iter().map(String::as_str)) {
        Some(similar) => format!("is no key of a profile; did you mean {similar}?"),
        None => format!("is no key of a profile; the keys are {}", keys.join(", ")),
    }
}
