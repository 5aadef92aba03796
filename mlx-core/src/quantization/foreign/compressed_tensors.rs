//! The settings that compressed-tensors writes.

use super::settings::{Foreign, Integers, Tool, USUAL_BLOCK, block};
use crate::config::Fields;
use crate::error::Result;

/// The formats of compressed tensors that can be read.
const FORMATS: [&str; 8] = [
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
];

/// The supported bits of integers.
const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];

/// Reads `quantization_config`. Activations are not quantized here, so that their settings are ignored.
pub(super) fn read(section: &Fields) -> Result<Foreign> {
    expect_format(section)?;
    if let Some(sparsity) = section.section("sparsity_config")?
        && let Some(format) = sparsity.optional_text("format")?.filter(|format| *format != "dense")
    {
        return Err(sparsity.error("format", format_args!("is {format:?}; sparse weights are not supported")));
    }
    if let Some(transforms) = section.section("transform_config")?
        && let Some(groups) = transforms.section("config_groups")?
        && groups.keys().next().is_some()
    {
        return Err(
            transforms.error("config_groups", "is not empty; transforms of activations are not supported")
        );
    }
    let Some(groups) = section.section("config_groups")? else {
        return Err(section.error("config_groups", "is missing"));
    };
    let mut foreign = Foreign::of(Tool::CompressedTensors);
    for name in groups.keys() {
        let Some(group) = groups.section(name)? else { continue };
        expect_format(&group)?;
        let Some(weights) = group.section("weights")? else { continue };
        if weights.optional_text("type")?.unwrap_or("int") == "int" {
            let integers = integers(&weights)?;
            if !foreign.integers.contains(&integers) {
                foreign.integers.push(integers);
            }
        } else if let Some(sides) = block(&weights, "block_structure")? {
            if foreign.block != USUAL_BLOCK && foreign.block != sides {
                return Err(weights.error(
                    "block_structure",
                    format_args!("is {sides:?}; other groups have {:?}", foreign.block),
                ));
            }
            foreign.block = sides;
        }
    }
    Ok(foreign)
}

fn expect_format(section: &Fields) -> Result<()> {
    match section.optional_text("format")? {
        Some(format) if !FORMATS.contains(&format) => {
            let supported = FORMATS.join(", ");
            Err(section.error("format", format_args!("is {format:?}; supported are {supported}")))
        }
        _ => Ok(()),
    }
}

/// Reads the format of integer weights.
fn integers(weights: &Fields) -> Result<Integers> {
    let bits = weights.size("num_bits")?;
    if !BITS.contains(&bits) {
        return Err(weights.error("num_bits", format_args!("is {bits}; supported are 2, 3, 4, 5, 6 and 8")));
    }
    let group = match weights.optional_text("strategy")? {
        Some("channel") => None,
        Some("group") => Some(weights.size("group_size")?),
        None if weights.has("group_size") => Some(weights.size("group_size")?),
        other => {
            let strategy = other.unwrap_or("missing");
            return Err(
                weights.error("strategy", format_args!("is {strategy:?}; supported are group and channel"))
            );
        }
    };
    match group {
        Some(size) if !size.is_multiple_of(32) => {
            Err(weights.error("group_size", format_args!("is {size}; supported are multiples of 32")))
        }
        _ => Ok(Integers { bits, group }),
    }
}
