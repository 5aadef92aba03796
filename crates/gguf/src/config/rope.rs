//! Rotary embedding: theta, and the scaling of frequencies.

use serde_json::{Value, json};

use super::keys::{Config, Floats};
use crate::error::Result;
use crate::model::{Model, shortest};

/// The constants of Llama 3's scaling: the original context, and the bounds of wavelengths as divisors of it.
const LLAMA3_CONTEXT: f64 = 8192.0;
const LLAMA3_LOW: f64 = 1.0;
const LLAMA3_HIGH: f64 = 4.0;
/// The largest relative difference of a stored factor from the computed one. Both are rounded to 32 bits in several steps.
const TOLERANCE: f64 = 1e-3;

/// Writes `rope_theta` and `rope_scaling`.
pub(super) fn write(model: &Model, floats: Floats, config: &mut Config) -> Result<()> {
    config.insert("rope_theta".to_owned(), theta(model)?.into());
    if let Some(scaling) = scaling(model, floats)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// Returns the base of the frequencies.
pub(super) fn theta(model: &Model) -> Result<f64> {
    let name = "rope.freq_base";
    match model.number(name)? {
        None => Ok(10_000.0),
        Some(theta) if theta > 0.0 => Ok(theta),
        Some(theta) => Err(model.error(name, format!("is {theta}; it must be above 0"))),
    }
}

/// Returns the scaling; `None` if there is none.
pub(super) fn scaling(model: &Model, floats: Floats) -> Result<Option<Value>> {
    let name = "rope.scaling.type";
    match model.text(name)? {
        Some("yarn") => yarn(model).map(Some),
        Some("longrope") => match long(model, floats)? {
            Some(scaling) => Ok(Some(scaling)),
            None => Err(model.tensor_error("rope_factors_long.weight", "is missing; longrope needs it")),
        },
        Some("none") | None if model.has("rope_freqs.weight") => llama3(model, floats),
        Some("none") => Ok(None),
        Some("linear") | None => linear(model),
        Some(other) => {
            let message = format!("is {other:?}; supported are none, linear, yarn and longrope");
            Err(model.error(name, message))
        }
    }
}

fn linear(model: &Model) -> Result<Option<Value>> {
    let mut factor = model.number("rope.scaling.factor")?;
    if factor.is_none() {
        // The name of the key in old files.
        factor = model.number("rope.scale_linear")?;
    }
    Ok(factor
        .filter(|&factor| factor > 0.0 && (factor - 1.0).abs() > f64::EPSILON)
        .map(|factor| json!({"rope_type": "linear", "factor": factor})))
}

fn yarn(model: &Model) -> Result<Value> {
    let mut scaling = Config::new();
    scaling.insert("rope_type".to_owned(), "yarn".into());
    for (key, name) in [
        ("factor", "factor"),
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ] {
        if let Some(number) = model.number(&format!("rope.scaling.{name}"))? {
            scaling.insert(key.to_owned(), number.into());
        }
    }
    let name = "rope.scaling.original_context_length";
    let original =
        model.positive_size(name)?.ok_or_else(|| model.error(name, "is missing or 0; yarn needs it"))?;
    scaling.insert("original_max_position_embeddings".to_owned(), original.into());
    if !scaling.contains_key("factor") {
        return Err(model.error("rope.scaling.factor", "is missing; yarn needs it"));
    }
    Ok(Value::Object(scaling))
}

/// Returns Llama 3's scaling, from the stored factor of each pair. The largest is the factor of the scaling.
fn llama3(model: &Model, floats: Floats) -> Result<Option<Value>> {
    let name = "rope_freqs.weight";
    let stored = numbers(model, floats, name)?;
    let factor = stored.iter().copied().fold(1.0, f64::max);
    if stored.iter().all(|&factor| (factor - 1.0).abs() < TOLERANCE) {
        return Ok(None);
    }
    let (theta, dims) = (theta(model)?, 2.0 * stored.len() as f64);
    for (pair, &stored) in stored.iter().enumerate() {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(2.0 * pair as f64 / dims);
        let computed = llama3_factor(wavelength, factor);
        if (computed - stored).abs() > TOLERANCE * computed {
            let message = format!(
                "has factor {stored} at {pair}; Llama 3's scaling by {factor} has {computed}, and no other scaling by factors is supported"
            );
            return Err(model.tensor_error(name, message));
        }
    }
    Ok(Some(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_CONTEXT as usize,
    })))
}

pub(super) fn llama3_factor(wavelength: f64, factor: f64) -> f64 {
    if wavelength < LLAMA3_CONTEXT / LLAMA3_HIGH {
        return 1.0;
    }
    if wavelength > LLAMA3_CONTEXT / LLAMA3_LOW {
        return factor;
    }
    let smooth = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW);
    1.0 / ((1.0 - smooth) / factor + smooth)
}

/// Writes LongRoPE's scaling if the file has its factors.
pub(super) fn write_long(model: &Model, floats: Floats, config: &mut Config) -> Result<()> {
    if let Some(scaling) = long(model, floats)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// Returns LongRoPE's scaling; `None` if the file has no factors.
fn long(model: &Model, floats: Floats) -> Result<Option<Value>> {
    if !model.has("rope_factors_long.weight") {
        return Ok(None);
    }
    let mut scaling = json!({
        "rope_type": "longrope",
        "long_factor": numbers(model, floats, "rope_factors_long.weight")?,
        "short_factor": numbers(model, floats, "rope_factors_short.weight")?,
    });
    if let Some(original) = model.positive_size("rope.scaling.original_context_length")? {
        scaling["original_max_position_embeddings"] = original.into();
    }
    Ok(Some(scaling))
}

/// Returns the numbers of a tensor.
pub(super) fn numbers(model: &Model, floats: Floats, name: &str) -> Result<Vec<f64>> {
    let index = model.find(name).ok_or_else(|| model.tensor_error(name, "is missing"))?;
    let numbers: Vec<f64> = floats(index)?.into_iter().map(|number| shortest(f64::from(number))).collect();
    match numbers.iter().find(|&&number| !number.is_finite() || number <= 0.0) {
        Some(number) => {
            let message = format!("has factor {number}; factors must be finite and above 0");
            Err(model.tensor_error(name, message))
        }
        None => Ok(numbers),
    }
}
