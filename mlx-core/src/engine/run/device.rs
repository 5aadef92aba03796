//! The passes of the engine. Invariant: no other file runs a model for a request.

use std::cell::OnceCell;

use super::memory_budget::{self, budget, step_rows};
use super::row_check::{MOST_ROWS, exact_widths};
use crate::array::{self, Rows};
use crate::backend::Backend;
use crate::cache::{SequenceState, Variant};
use crate::engine::capacity::Capacity;
use crate::engine::options::{EngineOptions, Exactness};
use crate::engine::schedule::chunks::Chunks;
use crate::engine::schedule::shapes::Shapes;
use crate::error::Result;
use crate::freed::freed;
use crate::model::{Batch, Hidden, Input, Issued, LogitRows, Model, ModelSpec, Pass, Span};
use crate::wired::Wired;

/// A model with its adapters, and how their passes are shaped.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(in crate::engine) struct Device {
    /// By the place that [`Sequence::adapter`](crate::engine::sequence::Sequence::adapter) names: first the model without an adapter.
    models: Vec<Checked>,
    pub(in crate::engine) chunks: Chunks,
    /// The most rows of a decode step.
    rows: usize,
    /// Bits of keys and values, if they are quantized.
    kv_bits: Option<u8>,
    pipelined: bool,
    runs_ahead: bool,
    /// Whether the rows of a draft attend in one operation.
    fused: bool,
    needs_checkpoints: bool,
    recurrent: bool,
    /// The hold on the memory of what runs here.
    wired: Option<Wired>,
    /// What is known about each model, with the context that was asked for.
    specs: Vec<ModelSpec>,
}

/// A model, and what was found out about it.
struct Checked {
    model: Box<dyn Model>,
    /// The widths at which rows keep their bits, once they were checked.
    exact_widths: OnceCell<Vec<usize>>,
}

impl Device {
    /// Prepares to run a model, the first of `models`, and the same with its adapters, the others, and computes the memory that is left
    /// for requests.
    pub(in crate::engine) fn new(
        models: Vec<Box<dyn Model>>,
        draft: Option<&ModelSpec>,
        options: &EngineOptions,
    ) -> Result<(Self, Capacity)> {
        let backend = options.backend()?;
        let rows = options.max_running.clamp(1, MOST_ROWS);
        // First: there may be no memory to compute anything.
        let capacity = memory_budget::of_models(&models, draft, options)?;
        array::limit_freed_memory(freed(budget(options)?))?;
        let specs = models.iter().map(|model| options.bounded(model.spec().clone())).collect();
        let mut device = Self::of(models, specs, rows, options.kv_bits, backend);
        device.wired = Some(Wired::hold(capacity.budget));
        if options.exact {
            for adapter in 0..device.models.len() {
                device.exact_widths(adapter)?;
            }
        }
        Ok((device, capacity))
    }

    /// Prepares to run a model that drafts, for up to so many sequences at once.
    pub(in crate::engine) fn for_drafts(model: Box<dyn Model>, running: usize, backend: Backend) -> Self {
        let spec = model.spec().clone();
        Self::of(vec![model], vec![spec], running, None, Backend { runs_ahead: false, ..backend })
    }

    fn of(
        models: Vec<Box<dyn Model>>,
        specs: Vec<ModelSpec>,
        rows: usize,
        kv_bits: Option<u8>,
        backend: Backend,
    ) -> Self {
        let checked = |model| Checked { model, exact_widths: OnceCell::new() };
        let models: Vec<Checked> = models.into_iter().map(checked).collect();
        let first_half = specs[0].first_half;
        let chunks = Chunks::new(backend.attention_kernels, specs[0].footprint.attention.row_scores());
        let empty = models[0].model.new_state(Variant::default());
        Self {
            wired: None,
            models,
            specs,
            needs_checkpoints: empty.needs_checkpoints(),
            recurrent: empty.is_recurrent(),
            fused: backend.fused_attention,
            chunks,
            rows,
            kv_bits,
            pipelined: backend.pipelined,
            runs_ahead: backend.pipelined && backend.runs_ahead && first_half > 0,
        }
    }

    /// The model with the adapter of this place.
    pub(in crate::engine) fn model(&self, adapter: usize) -> &dyn Model {
        self.models[adapter].model.as_ref()
    }

    /// What the models are, the one without an adapter first.
    pub(in crate::engine) fn specs(&self) -> Vec<ModelSpec> {
        self.specs.clone()
    }

    /// What all models have in common.
    fn base(&self) -> &dyn Model {
        self.model(0)
    }

    /// Whether steps run on the device while the host does something else.
    pub(in crate::engine) fn pipelined(&self) -> bool {
        self.pipelined
    }

    /// The layers of a decode step that are issued first, where it has halves.
    pub(super) fn first_half(&self) -> usize {
        self.base().spec().first_half
    }

    /// Whether decode steps may begin before the tokens of the ones before are drawn.
    pub(in crate::engine) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Whether states can go back to checkpoints alone.
    pub(in crate::engine) fn needs_checkpoints(&self) -> bool {
        self.needs_checkpoints
    }

    /// The widths of exact decode steps, which the first call checks; empty if a row's bits depend on the others at all widths.
    ///
    /// # Errors
    /// A machine was lost during the check, which then says nothing of bits; a later call checks again.
    fn exact_widths(&self, adapter: usize) -> Result<&[usize]> {
        let checked = &self.models[adapter].exact_widths;
        if let Some(widths) = checked.get() {
            return Ok(widths);
        }
        let widths = match exact_widths(self.model(adapter), self.step_rows()) {
            Err(error) if self.outage().is_some() => return Err(error),
            outcome => outcome.unwrap_or_else(|error| {
                tracing::warn!(%error, "exact widths could not be checked");
                Vec::new()
            }),
        };
        if widths.is_empty() {
            tracing::warn!(
                "no width of decode steps keeps a row's bits on this device; results are sampling-exact"
            );
        }
        tracing::debug!(adapter, ?widths, "the widths of exact decode steps");
        Ok(checked.get_or_init(|| widths))
    }

    /// The same if they were checked, as they are before an exact sequence runs.
    fn checked_widths(&self, adapter: usize) -> &[usize] {
        self.models[adapter].exact_widths.get().map_or(&[], Vec::as_slice)
    }

    /// How far exact results can be repeated; see [`exact_widths`](Self::exact_widths).
    pub(in crate::engine) fn check_exactness(&self, adapter: usize) -> Result<Exactness> {
        self.exact_widths(adapter)?;
        Ok(self.exactness(adapter, true))
    }

    /// How far a result can be repeated, for a request that is exact or not, by what was checked.
    pub(in crate::engine) fn exactness(&self, adapter: usize, exact: bool) -> Exactness {
        match self.kv_bits {
            Some(_) => Exactness::Approximate,
            None if exact && !self.checked_widths(adapter).is_empty() => Exactness::Bit,
            None => Exactness::Sampling,
        }
    }

    /// How far the result of a sequence of `length` tokens can be repeated: after a context shift it is not what it would be with all of
    /// its text.
    pub(in crate::engine) fn exactness_at(&self, length: usize, adapter: usize, exact: bool) -> Exactness {
        if length > self.context() { Exactness::Approximate } else { self.exactness(adapter, exact) }
    }

    /// The number of token ids.
    pub(in crate::engine) fn vocabulary(&self) -> usize {
        self.base().spec().vocab_size
    }

    /// The positions of states that so many bytes hold.
    pub(super) fn positions(&self, bytes: u64) -> usize {
        let per_token = self.specs[0].footprint.per_token;
        bytes.checked_div(per_token).and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// The positions that the model attends to.
    pub(in crate::engine) fn context(&self) -> usize {
        self.specs[0].context_length
    }

    /// What limits the shapes of passes.
    pub(in crate::engine) fn shapes(&self) -> Shapes {
        let (chunks, context, layers) = (self.chunks, self.context(), self.layers());
        Shapes { chunks, context, layers, step_rows: self.step_rows(), exact_rows: self.rows }
    }

    /// The most rows of a decode pass with those of drafts, for which [`Capacity`] has room.
    fn step_rows(&self) -> usize {
        step_rows(self.rows)
    }

    /// Whether a state keeps what it was after each row of a draft, and whether it is to be verified row by row.
    pub(in crate::engine) fn is_recurrent(&self) -> bool {
        self.recurrent
    }

    /// The variant that the state of a sequence of `length` tokens has.
    pub(in crate::engine) fn variant(&self, length: usize) -> Variant {
        self.base().spec().variant(length)
    }

    /// Whether a state can go on to a sequence of `length` tokens.
    pub(in crate::engine) fn fits(&self, state: &SequenceState, length: usize) -> bool {
        state.variant() == self.variant(length)
    }

    /// Replaces the state of a sequence that has grown into another variant: it is computed again from its first token, as in
    /// transformers.
    pub(in crate::engine) fn renew_variant(&self, state: &mut SequenceState, length: usize) {
        if !self.fits(state, length) {
            *state = self.new_state(length);
        }
    }

    /// An empty state for a sequence of `length` tokens that may grow.
    pub(in crate::engine) fn new_state(&self, length: usize) -> SequenceState {
        let state = self.base().new_state(self.variant(length));
        match self.kv_bits {
            Some(bits) => state.quantized(bits),
            None => state,
        }
    }

    /// The most rows of one decode pass through an adapter.
    pub(in crate::engine) fn most_rows(&self, adapter: usize, exact: bool) -> usize {
        let widest = if exact { self.checked_widths(adapter).last().copied() } else { None };
        widest.unwrap_or(self.rows)
    }

    /// The most rows of an exact pass through this adapter or any other one that was checked.
    pub(in crate::engine) fn exact_rows(&self, adapter: usize) -> usize {
        if let Err(error) = self.exact_widths(adapter) {
            tracing::debug!(%error, "nothing exact runs before the machine is back");
        }
        let checked = self.models.iter().filter_map(|it| it.exact_widths.get()?.last().copied());
        checked.min().unwrap_or(self.rows)
    }

    pub(in crate::engine) fn layers(&self) -> usize {
        self.base().spec().num_layers
    }

    /// A decode step as it has to run: an `exact` one span by span and as wide as was checked.
    pub(super) fn step(&self, adapter: usize, batch: Batch, rows: usize, exact: bool) -> Result<Batch> {
        if !exact {
            return Ok(batch);
        }
        let width = self.exact_widths(adapter)?.iter().copied().find(|&width| width >= rows);
        batch.per_span().padded(width.unwrap_or(rows))
    }

    /// Starts a decode step through an adapter: one token and its position for each state. In an `exact` step each row has the bits that it has alone, if
    /// there are [widths](Self::exact_widths) for that.
    pub(in crate::engine) fn decode(
        &self,
        adapter: usize,
        rows: &[(u32, usize)],
        states: &mut [&mut SequenceState],
        exact: bool,
    ) -> Result<Rows> {
        let (pass, _) = self.decode_batch(adapter, Batch::decode(rows), rows.len(), states, exact, false)?;
        self.logits(adapter, &pass)
    }

    /// The same with more than one token for some states: the newest, and those of a draft. Each state comes with its tokens and the
    /// position of the first; the rows are in their order, and so are those of the pass. With `in_halves` it gives the first layers, too, so that
    /// they can be waited for.
    pub(in crate::engine) fn verify(
        &self,
        adapter: usize,
        tokens: &[(Vec<u32>, usize)],
        states: &mut [&mut SequenceState],
        exact: bool,
        in_halves: bool,
    ) -> Result<(Rows, Pass, Option<Issued>)> {
        // Row by row, each has the bits of its own step.
        let by_row = exact || !self.fused || self.recurrent;
        let spans = tokens.iter().enumerate().flat_map(|(state, (tokens, start))| {
            let (count, len) = if by_row { (tokens.len(), 1) } else { (1, tokens.len()) };
            (0..count).map(move |row| Span { state, start: start + row, len, logits: LogitRows::All })
        });
        let spans = spans.collect();
        let rows: Vec<u32> = tokens.iter().flat_map(|it| &it.0).copied().collect();
        let batch = Batch::new(Input::Tokens(array::from_tokens(&rows)), spans);
        let (pass, front) = self.decode_batch(adapter, batch, rows.len(), states, exact, in_halves)?;
        Ok((self.logits(adapter, &pass)?, pass, front))
    }

    fn decode_batch(
        &self,
        adapter: usize,
        batch: Batch,
        rows: usize,
        states: &mut [&mut SequenceState],
        exact: bool,
        in_halves: bool,
    ) -> Result<(Pass, Option<Issued>)> {
        let model = self.model(adapter);
        let mut pass = model.begin(self.step(adapter, batch, rows, exact)?)?;
        // The device computes them while the graph of the other layers is built.
        let has_halves = self.first_half() > 0;
        let front = has_halves.then(|| self.issue_front(adapter, &mut pass, states)).transpose()?;
        model.advance(&mut pass, self.layers(), states)?;
        Ok((pass, front.filter(|_| in_halves)))
    }

    /// Starts the next layers of a pass through an adapter.
    pub(in crate::engine) fn advance(
        &self,
        adapter: usize,
        pass: &mut Pass,
        layers: usize,
        states: &mut [&mut SequenceState],
    ) -> Result<()> {
        self.model(adapter).advance(pass, layers, states)?;
        if pass.layer() < self.layers() || pass.batch().needs_hidden() {
            return pass.start();
        }
        // The states need no more of the last layer than its keys and values.
        states.iter().try_for_each(|state| state.start())
    }

    /// The hidden states of all rows of a pass after the last norm, with padding.
    pub(in crate::engine) fn hidden(&self, adapter: usize, pass: &Pass) -> Result<Hidden> {
        self.model(adapter).normalized(pass.hidden()).map(Hidden::new)
    }

    /// The same of the rows that the spans of a pass ask for.
    pub(in crate::engine) fn logit_hidden(&self, pass: &Pass) -> Result<Hidden> {
        self.base().normalized(&pass.logit_hidden()?).map(Hidden::new)
    }

    /// Starts the logits of the rows that the spans of a pass ask for.
    pub(in crate::engine) fn logits(&self, adapter: usize, pass: &Pass) -> Result<Rows> {
        let logits = Rows::new(&self.model(adapter).logits(&pass.logit_hidden()?)?)?;
        logits.start()?;
        Ok(logits)
    }
}
