//! Patterns of layers: layers with a sliding window, and layers with experts.

use crate::config::Fields;
use crate::error::Result;
use crate::model::config::DecoderConfig;

/// The name of a layer with a window in config.json.
pub(super) const SLIDING: &str = "sliding_attention";
/// The name of a layer without a window in config.json.
pub(super) const FULL: &str = "full_attention";

/// Reads `sliding_window`. It is `usual` if it is absent, and `None` if it is `null`.
pub(super) fn window(fields: &Fields, usual: Option<usize>) -> Result<Option<usize>> {
    let usual = if fields.is_null("sliding_window") { None } else { usual };
    Ok(fields.optional_size("sliding_window")?.or(usual))
}

/// Returns a flag for each layer, true if it has a window. `layer_types` decides, or else `usual`, which takes the index of a layer.
pub(super) fn kinds(fields: &Fields, count: usize, usual: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    of_kind(fields, count, SLIDING, usual)
}

/// Returns a flag for each layer, true if config.json calls it `kind`. All other layers must attend to everything.
pub(super) fn of_kind(
    fields: &Fields,
    count: usize,
    kind: &str,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let kinds = fields.strings("layer_types")?;
    if kinds.is_empty() {
        return Ok((0..count).map(usual).collect());
    }
    if kinds.len() != count {
        let message = format_args!("has {} entries; there are {count} layers", kinds.len());
        return Err(fields.error("layer_types", message));
    }
    let is_kind = |(index, it): (usize, &String)| match it.as_str() {
        it if it == kind => Ok(true),
        FULL => Ok(false),
        other => {
            let message = format_args!("has {other:?} at {index}; supported are {FULL} and {kind}");
            Err(fields.error("layer_types", message))
        }
    };
    kinds.iter().enumerate().map(is_kind).collect()
}

/// Sets the window of the layers that are `sliding`.
pub(super) fn set_window(
    fields: &Fields,
    config: &mut DecoderConfig,
    sliding: &[bool],
    window: Option<usize>,
) -> Result<()> {
    if window.is_none() && sliding.contains(&true) {
        return Err(fields.error("sliding_window", "is missing, and some layers of layer_types need it"));
    }
    for (layer, &sliding) in config.layers.iter_mut().zip(sliding) {
        layer.sliding_window = window.filter(|_| sliding);
    }
    Ok(())
}

/// Sets the same window for all layers. Rejects a `layer_types` that differs.
pub(super) fn set_window_of_all(
    fields: &Fields,
    config: &mut DecoderConfig,
    window: Option<usize>,
) -> Result<()> {
    let count = config.layers.len();
    let sliding = kinds(fields, count, |_| window.is_some())?;
    if let Some(index) = sliding.iter().position(|&sliding| sliding != window.is_some()) {
        let expected = if window.is_some() { SLIDING } else { FULL };
        let message = format_args!("differs from {expected} at {index}, which this family does not support");
        return Err(fields.error("layer_types", message));
    }
    set_window(fields, config, &sliding, window)
}

/// Sets the window of the layers that `layer_types` names, or of all layers without that key.
pub(super) fn slide_usually(
    fields: &Fields,
    config: &mut DecoderConfig,
    window: Option<usize>,
) -> Result<()> {
    let sliding = kinds(fields, config.layers.len(), |_| window.is_some())?;
    set_window(fields, config, &sliding, window)
}

/// Returns a flag for each layer, true if it has experts. `mlp_layer_types` decides, or else `usual`, which takes the index of a layer.
pub(super) fn sparse_kinds(
    fields: &Fields,
    count: usize,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let (key, kinds) = ("mlp_layer_types", fields.strings("mlp_layer_types")?);
    if kinds.is_empty() {
        return Ok((0..count).map(usual).collect());
    }
    if kinds.len() != count {
        let message = format_args!("has {} entries; there are {count} layers", kinds.len());
        return Err(fields.error(key, message));
    }
    let is_sparse = |(index, it): (usize, &String)| match it.as_str() {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        other => {
            let message = format_args!("has {other:?} at {index}; supported are dense and sparse");
            Err(fields.error(key, message))
        }
    };
    kinds.iter().enumerate().map(is_sparse).collect()
}

/// Reads `sliding_window` if `use_sliding_window` is true.
pub(super) fn window_if_used(fields: &Fields, usual: Option<usize>) -> Result<Option<usize>> {
    // transformers writes a window of 0 if it is not used.
    if super::base::flag(fields, "use_sliding_window", false)? { window(fields, usual) } else { Ok(None) }
}

/// Sets the window of the layers from `max_window_layers` on, if windows are used. `usual` and `first` are the defaults of the window and
/// of that key.
pub(super) fn slide_upper(
    fields: &Fields,
    config: &mut DecoderConfig,
    usual: Option<usize>,
    first: usize,
) -> Result<()> {
    let window = window_if_used(fields, usual)?;
    let first = fields.optional_number("max_window_layers")?.unwrap_or(first as f64);
    let kinds = kinds(fields, config.layers.len(), |layer| layer as f64 >= first)?;
    // Without a window, the list of types has no effect.
    let sliding: Vec<bool> = kinds.into_iter().map(|slides| slides && window.is_some()).collect();
    set_window(fields, config, &sliding, window)
}

/// Returns the name of each layer's kind. `layer_types` decides, or else `usual`, which takes the index of a layer.
pub(super) fn named_kinds(
    fields: &Fields,
    count: usize,
    known: &[&str],
    usual: impl Fn(usize) -> &'static str,
) -> Result<Vec<String>> {
    let kinds = fields.strings("layer_types")?;
    if kinds.is_empty() {
        return Ok((0..count).map(|layer| usual(layer).to_owned()).collect());
    }
    if kinds.len() != count {
        let message = format_args!("has {} entries; there are {count} layers", kinds.len());
        return Err(fields.error("layer_types", message));
    }
    match kinds.iter().position(|kind| !known.contains(&kind.as_str())) {
        Some(index) => {
            let (other, known) = (&kinds[index], known.join(", "));
            let message = format_args!("has {other:?} at {index}; supported are {known}");
            Err(fields.error("layer_types", message))
        }
        None => Ok(kinds),
    }
}

/// Reads `layer_rope_theta`: the theta of each layer, and 0 for a layer without rope. `None` if it is absent.
pub(super) fn rope_thetas(fields: &Fields, count: usize) -> Result<Option<Vec<f64>>> {
    let key = "layer_rope_theta";
    if !fields.has(key) {
        return Ok(None);
    }
    let thetas = fields.numbers(key)?;
    if thetas.len() != count {
        let message = format_args!("has {} entries; there are {count} layers", thetas.len());
        return Err(fields.error(key, message));
    }
    match thetas.iter().find(|theta| **theta < 0.0) {
        Some(theta) => Err(fields.error(key, format_args!("has {theta}; it must be at least 0"))),
        None => Ok(Some(thetas)),
    }
}
