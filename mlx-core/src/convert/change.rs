//! Assigns an adapter's changes to the matrices of a conversion. Invariant: pure.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::ConvertOptions;
use super::plan::{OutputTensor, PlannedChange};
use crate::adapter::{Adapter, Factor, Target};
use crate::error::{Error, Result};
use crate::quantization::{QuantScheme, QuantizationConfig};
use crate::weights::Entry;

/// Finds the unit that each module of `adapter` belongs to. Quantized matrices become one unit with their scales and biases.
pub(super) fn assign(
    units: &mut Vec<OutputTensor>,
    adapter: &mut Adapter,
    quantization: &QuantizationConfig,
    options: &ConvertOptions,
) -> Result<()> {
    let mut by_name: BTreeMap<String, OutputTensor> =
        std::mem::take(units).into_iter().map(|unit| (unit.name.clone(), unit)).collect();
    let modules = by_name.keys().filter_map(|name| name.strip_suffix(".weight").map(str::to_owned));
    for module in modules.collect::<Vec<_>>() {
        if !adapter.changes(&module) {
            continue;
        }
        let Some(weight) = by_name.remove(&format!("{module}.weight")) else { continue };
        let changed = if weight.sources.first().is_some_and(|entry| entry.dtype == Dtype::U32) {
            let [scales, biases] =
                ["scales", "biases"].map(|part| by_name.remove(&format!("{module}.{part}")));
            let scheme = quantization.of(&module, scales.is_some());
            let scheme = scheme.ok_or_else(|| {
                Error::Array(format!("{module} is packed, but quantization in config.json does not cover it"))
            })?;
            packed(weight, &module, scheme, [scales, biases])
        } else {
            let from = weight.sources.first().map_or(Dtype::F32, |entry| entry.dtype);
            (weight, from, None)
        };
        let unit = with_change(changed, &module, adapter, options)?;
        by_name.insert(unit.name.clone(), unit);
    }
    units.extend(by_name.into_values());
    Ok(())
}

/// Returns a quantized matrix as one unit, the type of its floats, and its scheme in the files.
fn packed(
    weight: OutputTensor,
    module: &str,
    scheme: QuantScheme,
    [scales, biases]: [Option<OutputTensor>; 2],
) -> (OutputTensor, Dtype, Option<QuantScheme>) {
    let mut shape = weight.shape.clone();
    if let Some(width) = shape.last_mut() {
        *width = scheme.inputs(*width);
    }
    let of_scales = scales.as_ref().map_or(Dtype::F32, |unit| unit.dtype);
    // MLX dequantizes to this type if the scales are not floats.
    let from = if scheme.has_biases() { of_scales } else { Dtype::BF16 };
    let sources: Vec<Entry> =
        [Some(weight), scales, biases].into_iter().flatten().flat_map(|unit| unit.sources).collect();
    let name = module.to_owned();
    let unit = OutputTensor {
        name,
        sources,
        shape,
        dtype: from,
        adds_one: false,
        multipliers: None,
        columns: None,
        colors_last: false,
        is_tower: false,
        scheme: Some(scheme),
        change: None,
    };
    (unit, from, Some(scheme))
}

fn with_change(
    (unit, from, packed): (OutputTensor, Dtype, Option<QuantScheme>),
    module: &str,
    adapter: &mut Adapter,
    options: &ConvertOptions,
) -> Result<OutputTensor> {
    let own = module.rsplit('.').next().unwrap_or(module);
    let target = match unit.shape[..] {
        [rows, width] if own.contains("embed") => Target::Embedding { rows, width },
        [count, outputs, inputs] => Target::Experts { count, inputs, outputs },
        [outputs, inputs] => Target::Linear { inputs, outputs },
        _ => return Ok(unit),
    };
    let Some(factors) = adapter.take(&[module.to_owned()], target)? else { return Ok(unit) };
    let magnitude = factors.magnitude.as_ref().map(|Factor { entry, .. }| entry.dtype);
    // As in mlx-lm, a wider type of the magnitudes becomes the type of the product.
    let made = if magnitude.is_none_or(|dtype| dtype == from) { from } else { Dtype::F32 };
    let dtype = options.dtype.unwrap_or(made);
    Ok(OutputTensor { dtype, change: Some(PlannedChange { target, factors, packed, from }), ..unit })
}
