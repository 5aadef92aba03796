//! The passes of the engine. Invariant: the only place that runs a model for a user.

use mlx_rs::Array;

use super::capacity::{Capacity, freed};
use super::chunks::Chunks;
use super::options::{EngineOptions, Exactness};
use super::row_check::{MOST_ROWS, exact_widths};
use crate::array::{self, Rows, slice_axis};
use crate::backend::default_memory_budget;
use crate::cache::{SequenceState, Variant};
use crate::error::{Error, Result};
use crate::model::{Batch, Model, ModelSpec, Pass, Row};

/// A model, and how its passes are shaped.
pub(super) struct Device {
    pub(super) model: Box<dyn Model>,
    pub(super) chunks: Chunks,
    /// The widths that steps are filled up to; empty if any will do.
    widths: Vec<usize>,
    most_rows: usize,
    /// In how many bits caches keep their numbers, if not as they are.
    kv_bits: Option<u8>,
    /// Whether a step that was started runs while the host does something else. MLX's CPU backend takes about fifty operations before it
    /// makes the caller wait, fewer than a step has; working ahead was measured to gain nothing there.
    pub(super) pipelined: bool,
}

impl Device {
    /// Prepares to run `model`; with it comes what there is room for.
    pub(super) fn new(model: Box<dyn Model>, options: &EngineOptions) -> Result<(Self, Capacity)> {
        let backend = options.backend()?;
        let rows = options.max_running.clamp(1, MOST_ROWS);
        // Before anything is computed: there may be no room for it.
        let spec = in_bits(model.spec(), options.kv_bits)?;
        let capacity = capacity(&spec, options)?;
        array::limit_freed_memory(freed(budget(options)?))?;
        let widths = if options.exact { exact_widths(model.as_ref(), rows)? } else { Vec::new() };
        if options.exact && widths.is_empty() {
            tracing::warn!("no width of steps keeps a row's bits on this device; results are sampling-exact");
        }
        let most_rows = widths.last().copied().unwrap_or(rows).min(MOST_ROWS);
        tracing::debug!(?widths, most_rows, "the shapes of steps");
        let (chunks, kv_bits) = (Chunks::new(backend.fused_attention), options.kv_bits);
        Ok((Self { model, chunks, widths, most_rows, kv_bits, pipelined: backend.pipelined }, capacity))
    }

    pub(super) fn exactness(&self) -> Exactness {
        match (self.kv_bits, self.keeps_bits()) {
            (Some(_), _) => Exactness::Approximate,
            (None, true) => Exactness::Bit,
            (None, false) => Exactness::Sampling,
        }
    }

    /// Whether a row's bits do not depend on its company.
    pub(super) fn keeps_bits(&self) -> bool {
        !self.widths.is_empty()
    }

    /// The variant that the state of a sequence of `length` tokens has to have.
    pub(super) fn variant(&self, length: usize) -> Variant {
        self.model.spec().variant(length)
    }

    /// An empty state for a sequence of `length` tokens that may grow.
    pub(super) fn new_state(&self, length: usize) -> SequenceState {
        let state = self.model.new_state(self.variant(length));
        match self.kv_bits {
            Some(bits) => state.quantized(bits),
            None => state,
        }
    }

    /// How much of a beginning of `length` tokens a prompt may take over from another one: all of it, or, where results are the same
    /// bits, whole chunks.
    pub(super) fn reusable(&self, length: usize) -> usize {
        if self.keeps_bits() { self.chunks.border(length) } else { length }
    }

    /// The most rows of one step.
    pub(super) fn most_rows(&self) -> usize {
        self.most_rows
    }

    pub(super) fn layers(&self) -> usize {
        self.model.spec().num_layers
    }

    fn step(&self, rows: &[Row]) -> Batch {
        let width = self.widths.iter().copied().find(|&width| width >= rows.len());
        Batch::step(rows, width.unwrap_or(rows.len()))
    }

    /// Starts a decode step, one row for each cache.
    pub(super) fn decode(&self, rows: &[Row], caches: &mut [&mut SequenceState]) -> Result<Rows> {
        let hidden = self.model.forward(self.step(rows), caches)?;
        let logits = Rows::new(&self.model.logits(&hidden)?)?;
        logits.start()?;
        Ok(logits)
    }

    /// Begins a pass over a chunk of a prompt.
    pub(super) fn begin_chunk(&self, tokens: &[u32], start: usize) -> Result<Pass> {
        self.model.begin(Batch::run(tokens, start))
    }

    /// Begins a pass over tokens that were generated once: the same rows that their steps had.
    pub(super) fn begin_replay(&self, tokens: &[u32], start: usize) -> Result<Pass> {
        let row = |(place, &token): (usize, &u32)| Row { cache: 0, token, position: start + place };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        self.model.begin(self.step(&rows))
    }

    /// Starts the next layers of a pass. `wanted` says whether somebody will read its hidden rows.
    pub(super) fn advance(
        &self,
        pass: &mut Pass,
        layers: usize,
        cache: &mut SequenceState,
        wanted: bool,
    ) -> Result<()> {
        self.model.advance(pass, layers, &mut [&mut *cache])?;
        // What the last layer makes of keys and values is of no use to a cache.
        if pass.layer() == self.layers() && !wanted { cache.start() } else { pass.start() }
    }

    /// Starts the logits of the last row of a pass.
    pub(super) fn last_logits(&self, hidden: &Array) -> Result<Rows> {
        let rows = hidden.dim(0);
        let logits = Rows::new(&self.model.logits(&slice_axis(hidden, 0, rows - 1, rows)?)?)?;
        logits.start()?;
        Ok(logits)
    }
}

/// What the model takes with caches of so many bits.
fn in_bits(spec: &ModelSpec, bits: Option<u8>) -> Result<ModelSpec> {
    let footprint = match bits {
        None => Some(spec.footprint),
        Some(bits @ (4 | 8)) => spec.footprint.in_bits(bits),
        Some(bits) => return Err(Error::option("kv_bits", format!("is {bits}; it must be 4 or 8"))),
    };
    let uneven =
        || Error::option("kv_bits", "cannot be used: this model's keys and values have no groups of 64");
    let mut spec = spec.clone();
    spec.footprint = footprint.ok_or_else(uneven)?;
    Ok(spec)
}

/// All bytes that an engine with these options may take.
pub(super) fn budget(options: &EngineOptions) -> Result<u64> {
    options.memory_budget.map_or_else(default_memory_budget, Ok)
}

/// What there is room for beside a model.
pub(super) fn capacity(spec: &ModelSpec, options: &EngineOptions) -> Result<Capacity> {
    let padded = options.max_running.clamp(1, MOST_ROWS).next_power_of_two().max(8);
    Capacity::new(
        spec,
        Chunks::new(options.backend()?.fused_attention),
        padded,
        options.max_running.max(1),
        budget(options)?,
    )
}
