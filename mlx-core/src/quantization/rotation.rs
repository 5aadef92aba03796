//! The settings of Bonsai 2: quantized matrices whose inputs are rotated. Invariant: pure.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::config::Fields;
use crate::error::Result;

/// The `model_type` of the models with these settings.
const FAMILY: &str = "prism_hadamard_qwen35";

/// The prefix of the names of modules in the files.
const PREFIX: &str = "language_model.";

/// Returns the sizes of the blocks of each rotated module: the powers of two that a Hadamard transform combines.
pub(super) fn read(fields: &Fields) -> Result<BTreeMap<String, usize>> {
    if fields.optional_text("model_type")? != Some(FAMILY) {
        return Ok(BTreeMap::new());
    }
    let wrong = || fields.error("modules", "must be a list of modules, each with a path and a block");
    let modules = fields.get("modules").and_then(Value::as_array).ok_or_else(wrong)?;
    let mut blocks = BTreeMap::new();
    for module in modules {
        let path = module.get("path").and_then(Value::as_str).ok_or_else(wrong)?;
        let block = module.get("block").and_then(Value::as_u64).ok_or_else(wrong)?;
        if block > 0 {
            blocks.insert(format!("{PREFIX}{path}"), usize::try_from(block).map_err(|_| wrong())?);
        }
    }
    Ok(blocks)
}
