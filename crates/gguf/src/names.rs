//! The names, shapes and orders of the folder's tensors.

mod rule;
mod rules;

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::error::Result;
use crate::model::{Model, Stored};
use crate::placement::{Change, ColumnOrder, Placement, RowOrder, Tiles};

use rule::{Delta, Edit};

use rule::ANY;
pub(crate) use rule::{Naming, Rule};
pub(crate) use rules::{
    AFMOE, BAILING, DEEPSEEK, ERNIE, EXAONE, FALCON, GEMMA, GEMMA_FEED_FORWARD, GEMMA4, GLM, GPT_OSS,
    GRANITE, HUNYUAN, HY, KIMI, LFM2, LLAMA, MAMBA, MINITRON, MIXTRAL, NEMOTRON, OLMO, PERMUTED, PHI,
    POST_NORMS, QWEN_MOE, QWEN3_5, STABLELM, STARCODER,
};

/// The stems of tensors outside of layers.
const OF_MODEL: [&str; 10] = [
    "token_embd",
    "token_embd_norm",
    "output",
    "output_norm",
    "rope_freqs",
    "rope_factors_long",
    "rope_factors_short",
    "per_layer_token_embd",
    "per_layer_model_proj",
    "per_layer_proj_norm",
];

/// The beginnings of the names of a vision or audio tower, and of its projector, which Ollama stores in the file of the model.
const TOWERS: [&str; 3] = ["v.", "a.", "mm."];

/// The names of tensors in layers that may be stored without a suffix.
const WITHOUT_SUFFIX: [&str; 3] = ["ssm_a", "ssm_d", "ffn_norm"];

/// The maximum number of heads with separate tensors; a file with more is damaged.
const MAX_HEADS: usize = 1024;

/// Returns the places of the stored tensors in the folder: the index of each stored tensor with its placement. A tensor that the folder has in
/// several parts occurs several times. Tensors that the folder does not have are left out.
///
/// # Errors
///
/// A tensor that is not known, and a shape that does not fit.
pub(crate) fn placements(naming: &Naming, model: &Model) -> Result<Vec<(usize, Placement)>> {
    let mut placements = Vec::with_capacity(model.tensors.len());
    let mut taken = BTreeSet::new();
    for (index, tensor) in model.tensors.iter().enumerate() {
        let of_tensor = match factors(naming, model, *tensor)? {
            Some(factors) => factors,
            None => found(naming, model, *tensor)?,
        };
        for placement in of_tensor {
            expect_fits(model, *tensor, &placement)?;
            if !taken.insert(placement.name.clone()) {
                let message = format!("is a second tensor for {}", placement.name);
                return Err(model.tensor_error(tensor.name, message));
            }
            placements.push((index, placement));
        }
    }
    Ok(placements)
}

/// Returns the placements of a tensor by the first rule that fits.
fn found(naming: &Naming, model: &Model, tensor: Stored) -> Result<Vec<Placement>> {
    match find(naming, model, tensor.name)? {
        Some((rule, name)) => apply(naming, model, tensor, rule.edit, name),
        None => Ok(Vec::new()),
    }
}

/// Returns the placements of the factor of a matrix, or of the factors of a stack: one for each row. `None` if the tensor is no such factor.
/// Factors of inputs are for quantized activations, and have no placement.
fn factors(naming: &Naming, model: &Model, tensor: Stored) -> Result<Option<Vec<Placement>>> {
    let Some((module, part)) = tensor.name.rsplit_once('.') else { return Ok(None) };
    let is_named = naming
        .rules
        .iter()
        .flat_map(|group| group.iter())
        .any(|rule| rule.stored.contains('.') && tensor.name.ends_with(rule.stored));
    let weight = model.find(&format!("{module}.weight")).filter(|_| !is_named);
    let Some(weight) = weight.map(|index| model.tensors[index]) else { return Ok(None) };
    match part {
        "input_scale" => return Ok(Some(Vec::new())),
        "scale" => {}
        _ => return Ok(None),
    }
    let count = elements(tensor.shape).unwrap_or(0);
    let of_matrix = |matrix: Placement| {
        let shape = matrix.shape.as_deref().unwrap_or(weight.shape);
        let outer = &shape[..shape.len().saturating_sub(1)];
        let rows = elements(outer).filter(|rows| count > 0 && rows.is_multiple_of(count) && *rows > 0);
        let Some(rows) = rows else {
            let message = format!("has shape {:?} for a matrix {shape:?}", tensor.shape);
            return Err(model.tensor_error(tensor.name, message));
        };
        let module = matrix.name.strip_suffix(".weight").unwrap_or(&matrix.name);
        Ok(Placement {
            shape: Some([outer, &[1]].concat()),
            rows: RowOrder::Repeated { times: rows / count },
            ..Placement::named(format!("{module}.row_scales"))
        })
    };
    found(naming, model, weight)?.into_iter().map(of_matrix).collect::<Result<_>>().map(Some)
}

/// Returns true if a tensor belongs to a vision or audio tower.
pub(crate) fn is_of_tower(name: &str) -> bool {
    TOWERS.iter().any(|tower| name.starts_with(tower))
}

/// Returns the rule for a tensor, and its name in the folder. `None` if it belongs to a draft layer or a tower, or if the folder does not have it.
fn find(naming: &Naming, model: &Model, name: &str) -> Result<Option<(&'static Rule, String)>> {
    let unknown = || {
        let message = format!("is not known for architecture {}", model.architecture);
        model.tensor_error(name, message)
    };
    if is_of_tower(name) {
        return Ok(None);
    }
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let (prefix, rest) = match layer {
        None => (String::new(), name),
        Some((number, rest)) => {
            let layer: usize = number.parse().map_err(|_| unknown())?;
            if layer >= model.layers {
                let drafts = model.optional_size("nextn_predict_layers")?.unwrap_or(0);
                return if layer - model.layers < drafts { Ok(None) } else { Err(unknown()) };
            }
            (format!("{}{layer}.", naming.layers), rest)
        }
    };
    // Some converters write this one without a suffix.
    let rest = if rest == "exp_probs_b" { "exp_probs_b.bias" } else { rest };
    let rules = || naming.rules.iter().flat_map(|group| group.iter());
    let is_complete = rest.contains('.') || WITHOUT_SUFFIX.contains(&rest);
    let whole = rules().find(|rule| is_complete && rule.stored == rest).map(|rule| (rule, String::new()));
    let by_stem = || {
        let (stem, suffix) =
            rest.rsplit_once('.').filter(|(_, suffix)| matches!(*suffix, "weight" | "bias"))?;
        let (stem, expert) = of_expert(stem);
        let rule =
            rules().find(|rule| rule.stored == stem && rule.stored.contains(ANY) == expert.is_some())?;
        Some((rule, expert, format!(".{suffix}")))
    };
    let whole = whole.map(|(rule, suffix)| (rule, None, suffix));
    let (rule, expert, suffix) = whole.or_else(by_stem).ok_or_else(unknown)?;
    let stem = rest.split_once('.').map_or(rest, |(stem, _)| stem);
    if OF_MODEL.contains(&stem) == layer.is_some() {
        return Err(unknown());
    }
    if rule.edit == Edit::Skip {
        return Ok(None);
    }
    let folder = expert.map_or(rule.folder.into(), |number| Cow::from(rule.folder.replace(ANY, number)));
    Ok(Some((rule, format!("{prefix}{folder}{suffix}"))))
}

/// Returns the stem of the rule for a stored stem, and the number of the expert if the tensor belongs to a single one.
fn of_expert(stem: &str) -> (Cow<'_, str>, Option<&str>) {
    match stem.rsplit_once('.') {
        // Without leading zeros, so that two names never mean the same tensor.
        Some((part, number)) if number.parse::<u16>().is_ok_and(|it| it.to_string() == number) => {
            (format!("{part}.{ANY}").into(), Some(number))
        }
        _ => (stem.into(), None),
    }
}

/// Returns the placements of a tensor.
fn apply(naming: &Naming, model: &Model, tensor: Stored, edit: Edit, name: String) -> Result<Vec<Placement>> {
    let plain = Placement::named(name);
    let shaped = |shape: Vec<usize>| {
        let shape = Some(shape).filter(|shape| shape != tensor.shape);
        Placement { shape, ..plain.clone() }
    };
    let all = elements(tensor.shape).ok_or_else(|| model.tensor_error(tensor.name, "is too large"))?;
    let flat = || shaped(vec![all]);
    Ok(vec![match edit {
        Edit::Same | Edit::Skip => plain,
        Edit::Halves => Placement { rows: RowOrder::Halves { head_dim: model.head_dim()? }, ..plain },
        Edit::MinusOne => Placement { change: Change::MinusOne, ..plain },
        Edit::Rate => Placement { change: Change::LogOfNegative, ..flat() },
        Edit::Flat => flat(),
        Edit::Row => shaped(vec![1, all]),
        Edit::Taps => {
            let [channels, taps] = matrix(model, tensor)?;
            shaped(vec![channels, 1, taps])
        }
        Edit::GateUp => return halves_of_stack(model, tensor, &plain.name),
        Edit::Queries => return queries(model, tensor, &plain.name),
        Edit::Heads => return heads(model, tensor, &plain.name),
        Edit::Delta(part) => return delta(naming, model, tensor, part, plain),
    }])
}

/// Returns the rows and columns of a matrix. Axes of 1 between them are ignored.
fn matrix(model: &Model, tensor: Stored) -> Result<[usize; 2]> {
    match *tensor.shape {
        [rows, columns] | [rows, 1, columns] | [1, rows, 1, columns] => Ok([rows, columns]),
        _ => {
            Err(model.tensor_error(tensor.name, format!("has shape {:?}; it must be a matrix", tensor.shape)))
        }
    }
}

fn halves_of_stack(model: &Model, tensor: Stored, name: &str) -> Result<Vec<Placement>> {
    let [experts, both, inputs] = *tensor.shape else {
        let message = format!("has shape {:?}; it must be [experts, outputs, inputs]", tensor.shape);
        return Err(model.tensor_error(tensor.name, message));
    };
    let count = both / 2;
    let part = |part: &str, start: usize| Placement {
        shape: Some(vec![experts, count, inputs]),
        rows: RowOrder::Part { period: both, start, count },
        ..Placement::named(name.replace("gate_up_proj", part))
    };
    Ok(vec![part("gate_proj", 0), part("up_proj", count)])
}

fn queries(model: &Model, tensor: Stored, name: &str) -> Result<Vec<Placement>> {
    let (head_dim, heads, kv_heads) = (model.head_dim()?, model.heads()?, model.kv_heads()?);
    let widths = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)]
        .map(|(part, heads)| (part, heads.saturating_mul(head_dim)));
    let period = widths.iter().fold(0usize, |sum, (_, width)| sum.saturating_add(*width));
    let mut start = 0;
    let mut placements = Vec::new();
    for (part, count) in widths {
        let mut shape = tensor.shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = count;
        }
        placements.push(Placement {
            shape: Some(shape),
            rows: RowOrder::Part { period, start, count },
            ..Placement::named(name.replace("qkv_proj", part))
        });
        start = start.saturating_add(count);
    }
    Ok(placements)
}

fn heads(model: &Model, tensor: Stored, name: &str) -> Result<Vec<Placement>> {
    let [heads, head_dim] = matrix(model, tensor)?;
    if heads > MAX_HEADS {
        let message = format!("has {heads} heads; no model has more than {MAX_HEADS}");
        return Err(model.tensor_error(tensor.name, message));
    }
    let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, "weight"));
    let of_head = |start| Placement {
        shape: Some(vec![head_dim]),
        rows: RowOrder::Part { period: heads, start, count: 1 },
        ..Placement::named(format!("{stem}.{start}.{suffix}"))
    };
    Ok((0..heads).map(of_head).collect())
}

/// Returns the placements of a part of a gated delta layer.
fn delta(
    naming: &Naming,
    model: &Model,
    tensor: Stored,
    part: Delta,
    plain: Placement,
) -> Result<Vec<Placement>> {
    let (groups, values) = (model.size("ssm.group_count")?, model.size("ssm.time_step_rank")?);
    let key_size = model.size("ssm.state_size")?;
    let value_size = model.size("ssm.inner_size")? / values;
    if !values.is_multiple_of(groups) {
        let message = format!("is {groups}; it must divide ssm.time_step_rank, which is {values}");
        return Err(model.error("ssm.group_count", message));
    }
    let heads = values / groups;
    let tiled = |first: usize, size: usize| {
        if naming.tiled && heads > 1 {
            RowOrder::Tiled { first, heads: Tiles { groups, heads, size } }
        } else {
            RowOrder::Same
        }
    };
    let keys = groups.saturating_mul(key_size).saturating_mul(2);
    Ok(vec![match part {
        Delta::Qkv => Placement { rows: tiled(keys, value_size), ..plain },
        Delta::Values => Placement { rows: tiled(0, value_size), ..plain },
        Delta::Heads => Placement { rows: tiled(0, 1), ..plain },
        Delta::Rate => Placement { rows: tiled(0, 1), change: Change::LogOfNegative, ..plain },
        Delta::Taps => {
            let [channels, taps] = matrix(model, tensor)?;
            Placement { rows: tiled(keys, value_size), shape: Some(vec![channels, taps, 1]), ..plain }
        }
        Delta::Output => match tiled(0, value_size) {
            RowOrder::Tiled { heads, .. } => Placement { columns: ColumnOrder::Tiled { heads }, ..plain },
            _ => plain,
        },
        Delta::BetaAlpha => {
            let [_, hidden] = matrix(model, tensor)?;
            let part = |part: &str, start: usize| Placement {
                shape: Some(vec![values, hidden]),
                rows: RowOrder::Part { period: 2 * heads, start, count: heads },
                ..Placement::named(plain.name.replace("in_proj_ba", part))
            };
            return Ok(vec![part("in_proj_b", 0), part("in_proj_a", heads)]);
        }
    }])
}

/// Checks that the tensor's shape fits its placement.
fn expect_fits(model: &Model, tensor: Stored, placement: &Placement) -> Result<()> {
    let fits = || {
        let (width, outer) = match tensor.shape {
            [] => return None,
            [_] => (1, tensor.shape),
            [outer @ .., width] => (*width, outer),
        };
        let count = placement.rows.count(elements(outer)?)?;
        let total = count.checked_mul(width)?;
        let shaped = placement.shape.as_deref().map_or(Some(total), elements)?;
        Some(shaped == total && placement.columns.fits(width))
    };
    if fits() == Some(true) {
        return Ok(());
    }
    let message = format!("has shape {:?}, which does not fit the sizes in the metadata", tensor.shape);
    Err(model.tensor_error(tensor.name, message))
}

/// Returns the number of elements of a shape; `None` if it overflows.
fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
}

#[cfg(test)]
mod tests;
