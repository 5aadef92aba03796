//! The changes of a conversion to config.json. Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::plan::OutputTensor;
use crate::quantization::QuantScheme;

/// Returns `config` for these units with sorted keys, in mlx-lm's format, or in mlx-vlm's if the model keeps its tower. `unused` are the
/// parts that are left out.
pub(super) fn changed(
    mut config: Map<String, Value>,
    units: &[OutputTensor],
    default: Option<QuantScheme>,
    dtype: Option<Dtype>,
    unused: &BTreeSet<&str>,
) -> Value {
    config.remove("_name_or_path");
    if !units.iter().any(|unit| unit.is_tower) {
        config.remove("vision_config");
    }
    // Without the section, readers would assume a tower of the default size.
    if unused.iter().any(|part| part.contains("audio")) && config.contains_key("audio_config") {
        config.insert("audio_config".to_owned(), Value::Null);
    }
    if let Some(default) = default {
        let mut section = entry(default);
        for unit in units {
            if let Some(scheme) = unit.scheme.filter(|scheme| *scheme != default) {
                section.insert(unit.name.clone(), Value::Object(entry(scheme)));
            }
        }
        config.insert("quantization".to_owned(), Value::Object(section));
    }
    // mlx-lm writes both keys.
    if let Some(section) = config.get("quantization").cloned() {
        config.insert("quantization_config".to_owned(), section);
    }
    if let Some(name) = dtype.and_then(name_of) {
        rename_dtype(&mut config, name);
        for part in ["text_config", "vision_config", "audio_config"] {
            if let Some(Value::Object(part)) = config.get_mut(part) {
                rename_dtype(part, name);
            }
        }
    }
    let sorted: BTreeMap<String, Value> = config.into_iter().collect();
    Value::Object(sorted.into_iter().collect())
}

/// Drops the settings of other quantization tools, whose weights are written as floats.
pub(super) fn drop_foreign(config: &mut Map<String, Value>) {
    for key in ["quantization_config", "compression_config"] {
        config.remove(key);
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            text.remove(key);
        }
    }
}

/// Renames modules in the sections of a quantized model.
pub(super) fn rename_modules(config: &mut Map<String, Value>, renamed: &BTreeMap<String, String>) {
    for key in ["quantization", "quantization_config"] {
        let Some(Value::Object(section)) = config.get_mut(key) else { continue };
        for (module, name) in renamed {
            if let Some(entry) = section.remove(module) {
                section.insert(name.clone(), entry);
            }
        }
    }
}

fn entry(scheme: QuantScheme) -> Map<String, Value> {
    let QuantScheme { mode, bits, group_size: group } = scheme;
    Map::from_iter([
        ("group_size".to_owned(), json!(group)),
        ("bits".to_owned(), json!(bits)),
        ("mode".to_owned(), json!(mode.as_str())),
    ])
}

/// Replaces the float type, if the section has one: mlx-lm reads it as the target type of a conversion.
fn rename_dtype(section: &mut Map<String, Value>, name: &str) {
    for key in ["torch_dtype", "dtype"] {
        if let Some(value) = section.get_mut(key) {
            *value = json!(name);
        }
    }
}

fn name_of(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F32 => Some("float32"),
        Dtype::F16 => Some("float16"),
        Dtype::BF16 => Some("bfloat16"),
        _ => None,
    }
}
