//! What `mlx inspect --ranks` says of a model on several machines.

use mlx_core::distributed::Share;
use mlx_core::engine::MemoryFit;
use mlx_core::inspect::Division;
use mlx_core::size;
use serde_json::{Value, json};

/// The object in the field `distributed` of `--json`.
pub(super) fn to_json(division: &Division) -> Value {
    let Division { plan, room } = division;
    let share = |(rank, share): (usize, &Share)| {
        json!({
            "rank": rank,
            "first_layer": share.layers.start,
            "layers": share.layers.len(),
            "device_bytes": share.weight_bytes,
            "cache_bytes_per_token": share.cache_bytes_per_token,
        })
    };
    json!({
        "ranks": plan.shares.iter().enumerate().map(share).collect::<Vec<_>>(),
        "crossings_per_token": plan.crossings,
        "bytes_per_crossing": plan.hidden_bytes,
        "bytes_for_sequences": room.shared,
        "longest_sequence": room.longest,
        "full_contexts": room.full_contexts,
        "refusal": room.refusal,
    })
}

/// The lines of the table.
pub(super) fn to_lines(division: &Division) -> Vec<(&'static str, String)> {
    let Division { plan, room } = division;
    let mut lines: Vec<(&'static str, String)> =
        plan.shares.iter().enumerate().map(|(rank, share)| ("", about(rank, share))).collect();
    lines[0].0 = "on machines";
    lines.push(("what fits", what_fits(room)));
    let all = plan.crossings as u64 * plan.hidden_bytes;
    lines.push((
        "a token costs",
        format!(
            "{} crossings of {}, {} in all, one after the other, beside the time of all layers",
            plan.crossings,
            size(plan.hidden_bytes),
            size(all)
        ),
    ));
    lines.push((
        "",
        "machines are no faster together than one: this is for models that do not fit".to_owned(),
    ));
    lines
}

fn about(rank: usize, share: &Share) -> String {
    let (first, last) = (share.layers.start, share.layers.end - 1);
    let layers = if first == last { format!("layer {first}") } else { format!("layers {first} to {last}") };
    let ends = if rank == 0 { ", the embedding and the head" } else { "" };
    let (weights, cache) = (size(share.weight_bytes), size(share.cache_bytes_per_token));
    format!("rank {rank}: {layers}{ends}: {weights}, and {cache} for a token's cache")
}

/// How many sequences fit.
pub(super) fn what_fits(room: &MemoryFit) -> String {
    match &room.refusal {
        Some(refusal) => format!("nothing: {refusal}"),
        None if room.full_contexts > 0 => format!("{} sequences of the whole context", room.full_contexts),
        None => format!("one sequence of up to {} tokens", room.longest),
    }
}
