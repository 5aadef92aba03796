//! Patterns of layers: which see a sliding window, and which know positions.

use crate::config::Fields;
use crate::error::Result;
use crate::model::config::DecoderConfig;

/// How config.json calls a layer that sees a window.
pub(super) const SLIDING: &str = "sliding_attention";
/// How it calls one that sees everything.
pub(super) const FULL: &str = "full_attention";

/// `sliding_window`; `usual` stands in for it if it is absent, and `null` means none.
pub(super) fn window(fields: &Fields, usual: Option<usize>) -> Result<Option<usize>> {
    let usual = if fields.is_null("sliding_window") { None } else { usual };
    Ok(fields.optional_size("sliding_window")?.or(usual))
}

/// Which of `count` layers see a window: what `layer_types` says, or else what is `usual` for a layer with this index.
pub(super) fn kinds(fields: &Fields, count: usize, usual: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    of_kind(fields, count, SLIDING, usual)
}

/// Which of `count` layers are what config.json calls `kind`, where all others see everything.
pub(super) fn of_kind(
    fields: &Fields,
    count: usize,
    kind: &str,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let kinds = fields.texts("layer_types")?;
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

/// Lets the layers that are `sliding` see `window` positions.
pub(super) fn slide(
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

/// All layers are of one kind, whatever `layer_types` says; it must not say anything else.
pub(super) fn slide_all(fields: &Fields, config: &mut DecoderConfig, window: Option<usize>) -> Result<()> {
    let count = config.layers.len();
    let sliding = kinds(fields, count, |_| window.is_some())?;
    if let Some(index) = sliding.iter().position(|&sliding| sliding != window.is_some()) {
        let expected = if window.is_some() { SLIDING } else { FULL };
        let message = format_args!("differs from {expected} at {index}, which this family does not support");
        return Err(fields.error("layer_types", message));
    }
    slide(fields, config, &sliding, window)
}

/// The layers that `layer_types` says see the window, or all of them.
pub(super) fn slide_usually(
    fields: &Fields,
    config: &mut DecoderConfig,
    window: Option<usize>,
) -> Result<()> {
    let sliding = kinds(fields, config.layers.len(), |_| window.is_some())?;
    slide(fields, config, &sliding, window)
}

/// Which of `count` layers have experts: what `mlp_layer_types` says, or else what is `usual` for a layer with this index.
pub(super) fn sparse_kinds(
    fields: &Fields,
    count: usize,
    usual: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let (key, kinds) = ("mlp_layer_types", fields.texts("mlp_layer_types")?);
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

/// `sliding_window` if `use_sliding_window` says so.
pub(super) fn window_if_used(fields: &Fields, usual: Option<usize>) -> Result<Option<usize>> {
    // Where it is not used, transformers writes a window of 0.
    if super::base::flag(fields, "use_sliding_window", false)? { window(fields, usual) } else { Ok(None) }
}

/// From layer `max_window_layers` on, layers see a window, if windows are used at all. `usual` and `first` are the defaults of the
/// window and of that layer.
pub(super) fn slide_upper(
    fields: &Fields,
    config: &mut DecoderConfig,
    usual: Option<usize>,
    first: usize,
) -> Result<()> {
    let window = window_if_used(fields, usual)?;
    let first = fields.optional_number("max_window_layers")?.unwrap_or(first as f64);
    let kinds = kinds(fields, config.layers.len(), |layer| layer as f64 >= first)?;
    // Without a window a list of kinds says nothing.
    let sliding: Vec<bool> = kinds.into_iter().map(|slides| slides && window.is_some()).collect();
    slide(fields, config, &sliding, window)
}
