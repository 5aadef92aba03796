//! Computes the capacity of an engine from its memory budget, its options and its models.

use mlx_files::size;

use super::row_check::MAX_ROWS;
use crate::backend::default_memory_budget;
use crate::engine::capacity::{Capacity, Passes, drafting};
use crate::engine::drafters::{ANSWERS_BYTES, Speculate};
use crate::engine::media::Towers;
use crate::engine::options::EngineOptions;
use crate::engine::schedule::chunks::Chunks;
use crate::error::{Error, Result};
use crate::freed::budget_for;
use crate::model::{AudioTower, Model, ModelSpec, Vision};
use crate::processor::{NoMedia, NoTowers};

/// Returns the capacity with these models and an optional draft model. All models except the first are versions of it with adapters.
pub(in crate::engine) fn of_models(
    models: &[Box<dyn Model>],
    draft: Option<&ModelSpec>,
    options: &EngineOptions,
) -> Result<Capacity> {
    let spec = in_bits(&options.bounded(spec_of(models)?), options.kv_bits)?;
    capacity(&spec, draft, options)
}

/// Returns a spec with the combined weights of models that share them: those of the first, and the additional bytes of each other one.
fn spec_of(models: &[Box<dyn Model>]) -> Result<ModelSpec> {
    let [base, adapted @ ..] = models else {
        return Err(Error::Internal("an engine was started without a model".into()));
    };
    let base = base.spec();
    let mut spec = adapted.last().map_or(base, |model| model.spec()).clone();
    let beside: u64 = adapted.iter().map(|model| model.spec().adapter_bytes(base)).sum();
    spec.weight_bytes = base.weight_bytes + beside;
    Ok(spec)
}

/// Returns the spec with keys and values of this many bits.
fn in_bits(spec: &ModelSpec, bits: Option<u8>) -> Result<ModelSpec> {
    let footprint = match bits {
        None => Some(spec.footprint),
        Some(bits @ (4 | 8)) => spec.footprint.in_bits(bits),
        Some(bits) => return Err(Error::option("kv_bits", format!("is {bits}; it must be 4 or 8"))),
    };
    let uneven =
        || Error::option("kv_bits", "cannot be used: this model's keys and values do not fit groups of 64");
    let mut spec = spec.clone();
    spec.footprint = footprint.ok_or_else(uneven)?;
    Ok(spec)
}

/// Returns the towers of a model that can be used, the reasons for the others, and the capacity with the towers. This machine's budget is
/// `budget` bytes.
pub(in crate::engine) fn with_towers(
    capacity: Capacity,
    vision: Option<Result<Vision>>,
    audio: Option<Result<AudioTower>>,
    budget: u64,
) -> (Towers, NoTowers, Capacity) {
    let bytes = |vision: &Vision| vision.footprint().weight_bytes;
    let fit = |capacity: &Capacity, vision: &Vision| {
        let footprint = vision.footprint();
        capacity.with_tower(|all| all.vision = Some(footprint), budget)
    };
    let (vision, capacity) = with_tower(capacity, "vision", vision, bytes, fit);
    let bytes = |audio: &AudioTower| audio.footprint().weight_bytes;
    let fit = |capacity: &Capacity, audio: &AudioTower| {
        let footprint = audio.footprint();
        capacity.with_tower(|all| all.audio = Some(footprint), budget)
    };
    let (audio, capacity) = with_tower(capacity, "audio", audio, bytes, fit);
    let missing = NoTowers { vision: vision.as_ref().err().cloned(), audio: audio.as_ref().err().cloned() };
    (Towers { vision: vision.ok(), audio: audio.ok() }, missing, capacity)
}

/// Returns a tower, or the reason why it cannot be used, and the capacity with it.
fn with_tower<T>(
    capacity: Capacity,
    kind: &str,
    tower: Option<Result<T>>,
    bytes: impl Fn(&T) -> u64,
    fit: impl Fn(&Capacity, &T) -> Option<Capacity>,
) -> (Result<T, NoMedia>, Capacity) {
    let unusable = match tower {
        None => {
            let article = if kind == "audio" { "an" } else { "a" };
            NoMedia::Unsupported(format!("cannot be given to a model without {article} {kind} tower"))
        }
        Some(Err(error)) => NoMedia::Unusable(error.to_string()),
        Some(Ok(tower)) => match fit(&capacity, &tower) {
            Some(capacity) => return (Ok(tower), capacity),
            None => NoMedia::Unusable(format!(
                "the {kind} tower needs {}, but only {} remain besides the model; raise the memory budget",
                size(bytes(&tower)),
                size(capacity.shared())
            )),
        },
    };
    (Err(unusable), capacity)
}

/// Returns the bytes that an engine with these options may use.
pub(in crate::engine) fn budget(options: &EngineOptions) -> Result<u64> {
    options.memory_budget.map_or_else(default_memory_budget, Ok)
}

/// Returns the maximum number of rows of a decode pass for this many sequences, including padding and drafts.
pub(super) fn step_rows(sequences: usize) -> usize {
    sequences.next_power_of_two().max(8)
}

/// Returns the capacity with a model and an optional draft model.
pub(in crate::engine) fn capacity(
    spec: &ModelSpec,
    draft: Option<&ModelSpec>,
    options: &EngineOptions,
) -> Result<Capacity> {
    let (backend, rows) = (options.backend()?, step_rows(options.max_running.clamp(1, MAX_ROWS)));
    let answers = if options.speculate == Speculate::Off { 0 } else { ANSWERS_BYTES };
    // The first layers of the next step, and the arrays from which its tokens are guessed.
    let guessed = spec.footprint.pass(rows) + 2 * rows as u64 * spec.footprint.logits_per_row;
    let ahead = if backend.lookahead { guessed } else { 0 };
    let kernels = backend.attention_kernels;
    let chunks = Chunks::new(kernels, spec.footprint.attention.row_scores());
    let passes = Passes { kernels, chunks, rows, running: options.max_running.max(1) };
    let within = |bytes| Capacity::new(spec, draft, passes, answers + ahead, bytes);
    let own = budget(options)?;
    let capacity = within(own)?;
    // Weights that only this machine holds take no memory of the others.
    let alone = spec.weight_bytes + draft.map_or(0, |draft| drafting(draft, passes));
    // Limit the budget, so that requests get no more memory here than on the machine with the least.
    match spec.remote_capacity.map(|(room, rank)| (room, rank, budget_for(alone + room))) {
        Some((room, rank, bytes)) if bytes < own => within(bytes).map_err(|_| {
            let message = format!(
                "of rank {rank} leaves {} after its weights, too little for passes and the shortest request; raise it there",
                size(room)
            );
            Error::option("memory_budget", message)
        }),
        _ => Ok(capacity),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::Backend;
    use crate::model;
    use crate::weights::WeightPolicy;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_rank_0_alone_holds_takes_nothing_of_a_smaller_machine() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
        let policy = WeightPolicy::new(Backend::CPU, true);
        let (mut spec, _) = model::inspect(&golden.join("models/llama-f32"), policy).expect("it is there");
        let options = EngineOptions { memory_budget: Some(4096 * MIB), ..EngineOptions::default() };
        let shared = |spec: &ModelSpec, draft: Option<&ModelSpec>| {
            capacity(spec, draft, &options).expect("there is room").shared()
        };
        let alone = shared(&spec, None);
        spec.remote_capacity = Some((2048 * MIB, 1));
        let beside = shared(&spec, None);
        assert!(beside < 2048 * MIB && beside > 1024 * MIB && beside < alone, "{beside} of {alone}");
        let mut draft = spec.clone();
        draft.weight_bytes = 300 * MIB;
        let near = |one: u64, other: u64| one.abs_diff(other) < MIB;
        let with_draft = shared(&spec, Some(&draft));
        assert!(near(with_draft, beside), "{with_draft} and {beside}");
        let folder = golden.join("pictures/mistral3-f32");
        let mut tower = model::inspect_vision(&folder, policy).expect("it sees").expect("it can be loaded");
        tower.weight_bytes = 500 * MIB;
        let capacity = capacity(&spec, Some(&draft), &options).expect("there is room");
        let seeing =
            |given: u64| capacity.with_tower(|all| all.vision = Some(tower), given).map(|it| it.shared());
        assert!(near(seeing(4096 * MIB).expect("there is room"), beside));
        // If this machine has the least memory, its capacity shrinks.
        let small = seeing(2700 * MIB).expect("there is room");
        assert!(small < beside - 100 * MIB, "{small} of {beside}");
        assert_eq!(seeing(700 * MIB), None);
        // Without other machines, both weights reduce the capacity.
        spec.remote_capacity = None;
        assert!(shared(&spec, Some(&draft)) <= alone - 300 * MIB);
    }
}
