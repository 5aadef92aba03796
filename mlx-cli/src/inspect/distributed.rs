//! The report of `mlx inspect --ranks`: a model split over several machines.

use std::path::Path;

use mlx_core::distributed::{Parallel, Share};
use mlx_core::engine::{EngineOptions, MemoryFit};
use mlx_core::inspect::{Partition, divide};
use mlx_files::size;
use mlx_options::describe;
use serde_json::{Value, json};

use crate::exit_code::Failure;

/// Both ways to split a model, or the reasons why it cannot be split.
pub(super) struct Divisions {
    pipeline: Result<Partition, String>,
    tensor: Result<Partition, String>,
}

impl Divisions {
    /// Splits the model in `folder` over `ranks` machines with these engine options.
    pub(super) fn new(folder: &Path, options: &EngineOptions, ranks: usize) -> Result<Self, Failure> {
        let way = |parallel| divide(folder, options, ranks, parallel);
        let (pipeline, tensor) = match (way(Parallel::Pipeline), way(Parallel::Tensor)) {
            (Err(refusal), Err(_)) => return Err(refusal.into()),
            both => both,
        };
        let described = |error| describe(&error);
        Ok(Self { pipeline: pipeline.map_err(described), tensor: tensor.map_err(described) })
    }
}

/// Returns the object in the field `distributed` of `--json`.
pub(super) fn to_json(divisions: &Divisions) -> Value {
    let way = |found: &Result<Partition, String>| match found {
        Ok(division) => division_to_json(division),
        Err(refusal) => json!({ "refusal": refusal }),
    };
    let mut object = way(&divisions.pipeline);
    object["tensor"] = way(&divisions.tensor);
    object
}

fn division_to_json(division: &Partition) -> Value {
    let Partition { plan, room } = division;
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
        "bytes_per_token": plan.token_bytes,
        "bytes_for_sequences": room.shared,
        "longest_sequence": room.longest,
        "full_contexts": room.full_contexts,
        "refusal": room.refusal,
    })
}

/// Returns the lines of the table.
pub(super) fn to_lines(divisions: &Divisions) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match &divisions.pipeline {
        Ok(division) => lines.extend(plan_lines("on machines", division, "the time of all layers")),
        Err(refusal) => lines.push(("on machines", format!("layers cannot be split: {refusal}"))),
    }
    let note = "several machines are not faster than one; use them for models that do not fit";
    lines.push(("", note.to_owned()));
    match &divisions.tensor {
        Ok(division) => {
            lines.extend(plan_lines("with tensor", division, "the time of a shard of each layer"));
        }
        Err(refusal) => lines.push(("with tensor", format!("not possible: {refusal}"))),
    }
    lines
}

fn plan_lines(name: &'static str, division: &Partition, compute_cost: &str) -> Vec<(&'static str, String)> {
    let Partition { plan, room } = division;
    let shares = plan.shares.iter().enumerate();
    let mut lines: Vec<(&'static str, String)> =
        shares.map(|(rank, share)| ("", share_text(rank, plan.parallel, share))).collect();
    lines[0].0 = name;
    lines.push(("what fits", capacity_text(room)));
    let cost = format!(
        "{} consecutive messages of {}, {} through rank 0, plus {compute_cost}",
        plan.crossings,
        size(plan.hidden_bytes),
        size(plan.token_bytes)
    );
    lines.push(("a token costs", cost));
    lines
}

fn share_text(rank: usize, parallel: Parallel, share: &Share) -> String {
    let (first, last) = (share.layers.start, share.layers.end - 1);
    let layers = match parallel {
        Parallel::Tensor => format!("a shard of each of {} layers", share.layers.len()),
        Parallel::Pipeline if first == last => format!("layer {first}"),
        Parallel::Pipeline => format!("layers {first} to {last}"),
    };
    let ends = if rank == 0 { ", the embedding and the head" } else { "" };
    let (weights, cache) = (size(share.weight_bytes), size(share.cache_bytes_per_token));
    format!("rank {rank}: {layers}{ends}: {weights}, and {cache} for a token's cache")
}

/// Describes the sequences that fit.
pub(super) fn capacity_text(room: &MemoryFit) -> String {
    match &room.refusal {
        Some(refusal) => format!("nothing: {refusal}"),
        None if room.full_contexts > 0 => format!("{} sequences of the whole context", room.full_contexts),
        None => format!("one sequence of up to {} tokens", room.longest),
    }
}
