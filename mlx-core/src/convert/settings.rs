//! What a conversion changes in config.json. Invariant: pure.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::plan::Unit;
use crate::quantization::QuantScheme;

/// What mlx-lm takes out, since it does not write what these are about.
const REMOVED: [&str; 2] = ["_name_or_path", "vision_config"];

/// `config` for these units, in the order of its keys, as mlx-lm writes it.
pub(super) fn changed(
    mut config: Map<String, Value>,
    units: &[Unit],
    usual: Option<QuantScheme>,
    dtype: Option<Dtype>,
) -> Value {
    for key in REMOVED {
        config.remove(key);
    }
    if let Some(usual) = usual {
        let mut section = entry(usual);
        for unit in units {
            if let Some(packing) = unit.packing.filter(|packing| *packing != usual) {
                section.insert(unit.name.clone(), Value::Object(entry(packing)));
            }
        }
        for key in ["quantization", "quantization_config"] {
            config.insert(key.to_owned(), Value::Object(section.clone()));
        }
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

fn entry(packing: QuantScheme) -> Map<String, Value> {
    let QuantScheme { mode, bits, group_size: group } = packing;
    Map::from_iter([
        ("group_size".to_owned(), json!(group)),
        ("bits".to_owned(), json!(bits)),
        ("mode".to_owned(), json!(mode.as_str())),
    ])
}

/// Says the new type wherever the old one was said: mlx-lm casts to it when it converts.
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
