//! The models that a first run offers: those of `starter_models.toml` that fit this machine.

use mlx_core::machine::Machine;
use serde::Deserialize;

/// A model of the Hub that suits beginners.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StarterModel {
    /// `ORG/NAME`.
    pub(crate) name: String,
    /// Approximate size of the download.
    pub(crate) bytes: u64,
    pub(crate) license: String,
    /// Its strengths, in a few words.
    pub(crate) about: String,
}

#[derive(Deserialize)]
struct File {
    model: Vec<StarterModel>,
}

/// Bytes that a model needs besides its weights, for a conversation and its computation.
const WORKING_MEMORY: u64 = 500_000_000;

/// Returns all models, smallest first.
pub(crate) fn all() -> Vec<StarterModel> {
    let file: File =
        toml::from_str(include_str!("starter_models.toml")).expect("the file is checked by a test");
    file.model
}

/// Returns the models that fit this machine: the recommended one first, the others by size.
pub(crate) fn fitting(machine: &Machine) -> Vec<StarterModel> {
    order_for(all(), machine.default_budget, machine.device == "cpu")
}

fn order_for(models: Vec<StarterModel>, budget: u64, is_cpu: bool) -> Vec<StarterModel> {
    let mut fitting: Vec<_> =
        models.into_iter().filter(|model| WORKING_MEMORY + model.bytes <= budget).collect();
    // Leave memory for other programs and long conversations. On a CPU, the smallest model is the fastest.
    let is_comfortable = |model: &StarterModel| !is_cpu && model.bytes <= budget / 4;
    let recommended = fitting.iter().rposition(is_comfortable).unwrap_or_default();
    if let Some(first) = fitting.get_mut(..=recommended) {
        first.rotate_right(1);
    }
    fitting
}

#[cfg(test)]
mod tests {
    use mlx_hub::ModelName;

    use super::*;

    fn names(gigabytes: u64, is_cpu: bool) -> Vec<String> {
        let short = |model: StarterModel| {
            model.name.rsplit('/').next().expect("a name").trim_end_matches("-4bit").to_owned()
        };
        order_for(all(), gigabytes * 1_000_000_000, is_cpu).into_iter().map(short).collect()
    }

    #[test]
    fn the_file_is_sound_and_ordered() {
        let models = all();
        assert!(models.is_sorted_by_key(|model| model.bytes));
        for model in models {
            model.name.parse::<ModelName>().expect("a name of the Hub");
        }
    }

    #[test]
    fn what_is_offered_fits_and_the_recommended_one_stands_first() {
        assert_eq!(names(5, false), ["Qwen3-1.7B", "Qwen3-0.6B", "Qwen3-4B"]);
        assert_eq!(names(11, false), ["Qwen3-4B", "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-8B"]);
        assert_eq!(names(22, false)[0], "Qwen3-8B");
        assert_eq!(names(11, true), ["Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B"]);
        assert!(names(0, true).is_empty());
    }
}
