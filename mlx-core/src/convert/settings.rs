//! The changes of a conversion to config.json. Invariant: pure.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::plan::Unit;
use crate::quantization::QuantScheme;

/// Keys that mlx-lm removes.
const REMOVED: [&str; 2] = ["_name_or_path", "vision_config"];

/// `config` for these units with sorted keys, as mlx-lm writes it.
pub(super) fn changed(
    mut config: Map<String, Value>,
    units: &[Unit],
    default: Option<QuantScheme>,
    dtype: Option<Dtype>,
) -> Value {
    for key in REMOVED {
        config.remove(key);
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
    // mlx-lm writes both.
    if let Some(section) = config.get("quantization").cloned() {
        config.insert("quantization_config".to_owned(), section);
    }
    if let Some(name) = dtype.and_then(name_of) {
        rename_dtype(&mut config, name);
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            rename_dtype(text, name);
        }
    }
    let sorted: BTreeMap<String, Value> = config.into_iter().collect();
    Value::Object(sorted.into_iter().collect())
}

fn entry(scheme: QuantScheme) -> Map<String, Value> {
    let QuantScheme { mode, bits, group_size: group } = scheme;
    Map::from_iter([
        ("group_size".to_owned(), json!(group)),
        ("bits".to_owned(), json!(bits)),
        ("mode".to_owned(), json!(mode.as_str())),
    ])
}

/// Replaces the float type where it is given: mlx-lm reads it as the target of a conversion.
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
