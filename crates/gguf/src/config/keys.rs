//! The keys of a config, and the functions that write them.

use serde_json::{Map, Value};

use crate::error::Result;
use crate::model::Model;

/// The keys of a config.
pub(crate) type Config = Map<String, Value>;

/// Reads the numbers of the tensor with this index.
pub(crate) type Floats<'a> = &'a dyn Fn(usize) -> Result<Vec<f32>>;

/// Writes the config of a family.
pub(crate) type Write = fn(&Model, Floats) -> Result<Config>;

/// Sets the keys of `section`.
pub(super) fn set(config: &mut Config, section: Value) {
    if let Value::Object(section) = section {
        config.extend(section);
    }
}
