//! The names of an adapter's tensors. Invariant: pure.

use std::borrow::Cow;

/// The role of a tensor in the update of its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FactorRole {
    /// The factor that is applied to the input.
    First,
    /// The factor that produces the output.
    Second,
    /// DoRA's magnitudes of the outputs.
    Magnitude,
}

/// The suffixes of mlx-lm after the module name.
const MLX_LM: [(&str, FactorRole); 3] =
    [(".lora_a", FactorRole::First), (".lora_b", FactorRole::Second), (".m", FactorRole::Magnitude)];

/// The suffixes of PEFT after the module name.
const PEFT: [(&str, FactorRole); 6] = [
    (".lora_A.weight", FactorRole::First),
    (".lora_B.weight", FactorRole::Second),
    (".lora_embedding_A", FactorRole::First),
    (".lora_embedding_B", FactorRole::Second),
    (".lora_magnitude_vector", FactorRole::Magnitude),
    (".lora_magnitude_vector.weight", FactorRole::Magnitude),
];

/// Returns the canonical name of a tensor's module, and the tensor's role in its update.
pub(super) fn parse(name: &str, is_peft: bool) -> Option<(String, FactorRole)> {
    let (name, ends) = if is_peft {
        (name.strip_prefix("base_model.model.")?, PEFT.as_slice())
    } else {
        (name, MLX_LM.as_slice())
    };
    let found = ends.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)));
    found.map(|(module, part)| (canonical(module).into_owned(), part))
}

/// Returns the name of a module without `language_model.`, which tools put at different positions. Adds the prefix `model.` if a model was
/// trained without its head and lacks it.
pub(super) fn canonical(module: &str) -> Cow<'_, str> {
    if module.starts_with("layers.") || module == "embed_tokens" {
        return format!("model.{module}").into();
    }
    let Some(at) = module.find("language_model.") else { return module.into() };
    format!("{}{}", &module[..at], &module[at + "language_model.".len()..]).into()
}

/// Returns the layer index of a module, and its name within the layer.
pub(super) fn in_layer(module: &str) -> Option<(usize, &str)> {
    let (_, rest) = module.split_once("layers.")?;
    let (number, name) = rest.split_once('.')?;
    Some((number.parse().ok()?, name))
}
