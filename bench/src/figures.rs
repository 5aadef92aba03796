//! The result of a measurement: numbers by name, in insertion order.

use std::fmt;

use serde_json::{Map, Value};

/// Names contain quantity and unit: `prompt, tok/s`.
#[derive(Default)]
pub(crate) struct Figures(Map<String, Value>);

impl Figures {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value.into());
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::Object(self.0.clone()).fmt(formatter)
    }
}

/// The given percentile of `values`.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}
