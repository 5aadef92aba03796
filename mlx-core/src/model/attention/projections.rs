//! The projections of queries, keys and values as one product.

use super::config::{AttentionConfig, Projections};
use super::heads::Heads;
use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// Queries above keys above values, whatever the checkpoint's own order.
pub(super) fn load(
    weights: &mut Weights,
    name: &str,
    hidden: usize,
    config: &AttentionConfig,
) -> Result<Linear> {
    let Heads { query, key, size } = config.heads();
    let names = ["q_proj", "k_proj", "v_proj", "qkv_proj"].map(|part| format!("{name}.{part}"));
    if config.projections == Projections::Apart {
        let widths = [query * size, key * size, key * size];
        let parts: Vec<Part> =
            names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs }).collect();
        return Linear::load(weights, &parts, hidden, config.biases.qkv);
    }
    let part = Part { name: &names[3], outputs: (query + 2 * key) * size };
    if config.projections == Projections::InOne {
        return Linear::load(weights, &[part], hidden, config.biases.qkv);
    }
    // Each key head has a block of `group` query heads, itself and its value.
    let group = query / key;
    let block = |key: usize, place: usize| key * (group + 2) + place;
    let queries = (0..query).map(|head| block(head / group, head % group));
    let heads = queries
        .chain((0..key).map(|head| block(head, group)))
        .chain((0..key).map(|head| block(head, group + 1)));
    let rows: Vec<i32> =
        heads.flat_map(|head| (head * size..(head + 1) * size).map(|row| row as i32)).collect();
    Linear::load_reordered(weights, &part, hidden, config.biases.qkv, &rows)
}
