//! The settings of AWQ and GPTQ. Both tools store matrices transposed.

use super::settings::{Foreign, Integers, Tool};
use crate::config::Fields;
use crate::error::Result;

/// Reads the settings of AutoAWQ.
pub(super) fn awq(section: &Fields) -> Result<Foreign> {
    if let Some(version) = section.optional_text("version")?.filter(|it| !it.eq_ignore_ascii_case("gemm")) {
        return Err(section.error("version", format_args!("is {version:?}; supported is \"gemm\"")));
    }
    let bits = section.optional_size(if section.has("w_bit") { "w_bit" } else { "bits" })?.unwrap_or(4);
    if bits != 4 {
        return Err(section.error("bits", format_args!("is {bits}; AWQ supports 4")));
    }
    let key = if section.has("q_group_size") { "q_group_size" } else { "group_size" };
    Ok(Foreign { integers: vec![Integers { bits, group: group(section, key)? }], ..Foreign::of(Tool::Awq) })
}

/// Reads the settings of AutoGPTQ or GPTQModel.
pub(super) fn gptq(section: &Fields) -> Result<Foreign> {
    let bits = section.size("bits")?;
    if ![2, 4, 8].contains(&bits) {
        return Err(section.error("bits", format_args!("is {bits}; supported for GPTQ are 2, 4 and 8")));
    }
    let zero_offset = match section.optional_text("checkpoint_format")? {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(format) => {
            return Err(section.error(
                "checkpoint_format",
                format_args!("is {format:?}; supported are \"gptq\" and \"gptq_v2\""),
            ));
        }
    };
    // A pattern that begins with `-:` excludes modules.
    if let Some(dynamic) = section.section("dynamic")?
        && let Some(pattern) = dynamic.keys().find(|pattern| !pattern.starts_with("-:"))
    {
        return Err(dynamic.error(pattern, "is set; settings of single modules are not supported"));
    }
    let integers = vec![Integers { bits, group: group(section, "group_size")? }];
    Ok(Foreign { integers, ..Foreign::of(Tool::Gptq { zero_offset }) })
}

/// Reads the group size; -1 is one group per row.
fn group(section: &Fields, key: &str) -> Result<Option<usize>> {
    if section.get(key).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    let size = section.size(key)?;
    if !size.is_multiple_of(32) {
        return Err(section.error(key, format_args!("is {size}; supported are -1 and multiples of 32")));
    }
    Ok(Some(size))
}
