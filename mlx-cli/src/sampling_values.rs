//! Sampling parameters as JSON values, to print and to parse again.

use mlx_core::engine::RequestOptions;
use mlx_core::sampling::Setting;
use serde_json::{Map, Value};

use crate::chat::change_params;

/// Returns the value of a setting.
pub(crate) fn number(setting: &Setting) -> Value {
    serde_json::from_str(&setting.value).expect("settings have JSON numbers")
}

/// Returns values by name.
pub(crate) fn to_json(settings: Vec<Setting>) -> Map<String, Value> {
    settings.into_iter().map(|it| (it.name.to_owned(), number(&it))).collect()
}

/// Sets the values that [`to_json`] returned.
pub(crate) fn apply(values: &Map<String, Value>, options: &mut RequestOptions) -> Result<(), String> {
    values.iter().try_for_each(|(name, value)| change_params(options, &format!("{name}={value}")))
}
