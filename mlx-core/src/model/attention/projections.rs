//! The projections of queries, keys and values as one product.

use super::config::{AttentionConfig, OutputGate, Projections};
use super::heads::Heads;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// Takes the projections as one matrix: output gates if the layer has them, queries, then keys and values unless the layer borrows them.
/// The order of the checkpoint does not matter.
pub(super) fn load(
    weights: &mut Weights,
    name: &str,
    hidden: usize,
    config: &AttentionConfig,
    borrows: bool,
) -> Result<Linear> {
    let Heads { query, key, size } = config.heads();
    let names = ["q_proj", "k_proj", "v_proj", "qkv_proj"].map(|part| format!("{name}.{part}"));
    match config.output_gate {
        Some(OutputGate::BesideQueries) => return load_gated(weights, &names, hidden, config),
        Some(OutputGate::Apart) => {
            let gate = format!("{name}.gate_proj");
            let gate = Part { name: &gate, outputs: query * size };
            let widths = [query * size, key * size, key * size];
            let parts = names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs });
            let parts: Vec<Part> = [gate].into_iter().chain(parts).collect();
            return Linear::load(weights, &parts, hidden, config.biases.qkv);
        }
        Some(OutputGate::Heads(_)) | None => {}
    }
    if config.projections == Projections::Apart {
        let widths = [query * size, key * size, key * size];
        let count = match (borrows, config.attention_k_eq_v) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        let parts = names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs });
        let parts: Vec<Part> = parts.take(count).collect();
        return Linear::load(weights, &parts, hidden, config.biases.qkv);
    }
    let part = Part { name: &names[3], outputs: (query + 2 * key) * size };
    if config.projections == Projections::InOne {
        return Linear::load(weights, &[part], hidden, config.biases.qkv);
    }
    // Each block has `group` query heads, their key head and its value.
    let group = query / key;
    let block = |key: usize, place: usize| key * (group + 2) + place;
    let queries = (0..query).map(|head| block(head / group, head % group));
    let heads = queries
        .chain((0..key).map(|head| block(head, group)))
        .chain((0..key).map(|head| block(head, group + 1)));
    let rows: Vec<i32> =
        heads.flat_map(|head| (head * size..(head + 1) * size).map(|row| row as i32)).collect();
    Linear::load_in_order(weights, vec![(part, Some(rows))], hidden, config.biases.qkv)
}

/// For `q_proj` with each head's query followed by its output gate.
fn load_gated(
    weights: &mut Weights,
    [queries, keys, values, _]: &[String; 4],
    hidden: usize,
    config: &AttentionConfig,
) -> Result<Linear> {
    let Heads { query, key, size } = config.heads();
    let rows = |second: usize| {
        let head = move |head: usize| (2 * head + second) * size..(2 * head + second + 1) * size;
        (0..query).flat_map(head).map(|row| row as i32)
    };
    let parts = vec![
        (Part { name: queries, outputs: 2 * query * size }, Some(rows(1).chain(rows(0)).collect())),
        (Part { name: keys, outputs: key * size }, None),
        (Part { name: values, outputs: key * size }, None),
    ];
    Linear::load_in_order(weights, parts, hidden, config.biases.qkv)
}
