//! The passes of the engine. Invariant: no other file runs a model for a request.

use std::cell::OnceCell;

use super::memory_budget::{self, budget, step_rows};
use super::row_check::{MAX_ROWS, exact_widths};
use crate::array::{self, Rows};
use crate::backend::Backend;
use crate::cache::{SequenceState, Variant};
use crate::engine::capacity::Capacity;
use crate::engine::options::{EngineOptions, Exactness};
use crate::engine::schedule::chunks::Chunks;
use crate::engine::schedule::shapes::Shapes;
use crate::error::{Error, Result};
use crate::freed::cache_limit;
use crate::model::{Batch, Hidden, Input, Issued, LogitRows, Model, ModelSpec, OtherMachines, Pass, Span};
use crate::wired::Wired;

/// A model with its adapters, and the shapes of their passes.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(in crate::engine) struct Device {
    /// The models by adapter number, as in [`Sequence::adapter`](crate::engine::sequence::Sequence::adapter); the first has no adapter.
    models: Vec<Checked>,
    pub(in crate::engine) chunks: Chunks,
    /// The maximum number of rows of a decode step without drafts.
    rows: usize,
    /// The bits of quantized keys and values; `None` if they are not quantized.
    kv_bits: Option<u8>,
    pipelined: bool,
    runs_ahead: bool,
    /// True if the rows of a draft attend in one operation.
    fused: bool,
    needs_checkpoints: bool,
    recurrent: bool,
    /// Keeps the memory of the engine wired.
    wired: Option<Wired>,
    /// The spec of each model, with the configured context.
    specs: Vec<ModelSpec>,
}

/// A model with the results of its checks.
struct Checked {
    model: Box<dyn Model>,
    /// The widths at which rows have the same bits, once they are checked.
    exact_widths: OnceCell<Vec<usize>>,
}

impl Device {
    /// Prepares to run `models`: a model, followed by its versions with adapters. Computes the memory that remains for requests.
    pub(in crate::engine) fn new(
        models: Vec<Box<dyn Model>>,
        draft: Option<&ModelSpec>,
        options: &EngineOptions,
    ) -> Result<(Self, Capacity)> {
        let backend = options.backend()?;
        let rows = options.max_running.clamp(1, MAX_ROWS);
        // This comes first, since there may be too little memory to compute anything.
        let capacity = memory_budget::of_models(&models, draft, options)?;
        array::limit_freed_memory(cache_limit(budget(options)?))?;
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

    /// Prepares to run a draft model for up to `running` sequences at once.
    pub(in crate::engine) fn for_drafts(model: Box<dyn Model>, running: usize, backend: Backend) -> Self {
        let spec = model.spec().clone();
        Self::of(vec![model], vec![spec], running, None, Backend { lookahead: false, ..backend })
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
            runs_ahead: backend.pipelined && backend.lookahead && first_half > 0,
        }
    }

    /// Returns the model with this adapter.
    pub(in crate::engine) fn model(&self, adapter: usize) -> &dyn Model {
        self.models[adapter].model.as_ref()
    }

    /// Returns the specs of the models; the first has no adapter.
    pub(in crate::engine) fn specs(&self) -> Vec<ModelSpec> {
        self.specs.clone()
    }

    /// Returns the model without an adapter. Its shape is that of all models.
    fn base(&self) -> &dyn Model {
        self.model(0)
    }

    /// Returns true if the device runs steps while the host does other work.
    pub(in crate::engine) fn pipelined(&self) -> bool {
        self.pipelined
    }

    /// Returns the number of layers in the first half of a decode step; 0 if steps are not divided.
    pub(super) fn first_half(&self) -> usize {
        self.base().spec().first_half
    }

    /// Returns true if a decode step may begin before the tokens of the previous step are drawn.
    pub(in crate::engine) fn uses_lookahead(&self) -> bool {
        self.runs_ahead
    }

    /// Returns true if states can only be truncated to checkpoints.
    pub(in crate::engine) fn needs_checkpoints(&self) -> bool {
        self.needs_checkpoints
    }

    /// Returns the widths of exact decode steps, in ascending order. The first call checks them. The result is empty if a row's bits depend
    /// on the other rows at all widths.
    ///
    /// # Errors
    /// If a machine was lost during the check, which is then inconclusive; a later call checks again.
    fn exact_widths(&self, adapter: usize) -> Result<&[usize]> {
        let checked = &self.models[adapter].exact_widths;
        if let Some(widths) = checked.get() {
            return Ok(widths);
        }
        let widths = match exact_widths(self.model(adapter), self.step_rows()) {
            Err(error @ Error::Distributed(_)) => return Err(error),
            Err(error) => {
                if let Some(machines) = self.other_machines() {
                    return Err(machines.fail(&error.to_string()));
                }
                tracing::warn!(%error, "cannot check the widths of exact decode steps");
                Vec::new()
            }
            Ok(widths) => widths,
        };
        if widths.is_empty() {
            tracing::warn!(
                "a row's bits depend on the other rows at every decode width on this device; results are sampling-exact"
            );
        }
        tracing::debug!(adapter, ?widths, "the widths of exact decode steps");
        Ok(checked.get_or_init(|| widths))
    }

    /// Returns the other machines of a divided model.
    pub(in crate::engine) fn other_machines(&self) -> Option<&dyn OtherMachines> {
        self.base().other_machines()
    }

    /// Waits until the other machines of a divided model have computed all passes.
    pub(super) fn wait_for_others(&self) -> Result<()> {
        self.other_machines().map_or(Ok(()), OtherMachines::wait)
    }

    /// Returns the widths if they were checked, which happens before an exact sequence runs.
    fn checked_widths(&self, adapter: usize) -> &[usize] {
        self.models[adapter].exact_widths.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the exactness of exact results, after a check; see [`exact_widths`](Self::exact_widths).
    pub(in crate::engine) fn check_exactness(&self, adapter: usize) -> Result<Exactness> {
        self.exact_widths(adapter)?;
        Ok(self.exactness(adapter, true))
    }

    /// Returns the exactness of the results of exact or other requests, according to the checks so far.
    pub(in crate::engine) fn exactness(&self, adapter: usize, exact: bool) -> Exactness {
        match self.kv_bits {
            Some(_) => Exactness::Approximate,
            None if exact && !self.checked_widths(adapter).is_empty() => Exactness::Bit,
            None => Exactness::Sampling,
        }
    }

    /// Returns the exactness of a sequence of `length` tokens. After a context shift, a result differs from that with the full text.
    pub(in crate::engine) fn exactness_at(&self, length: usize, adapter: usize, exact: bool) -> Exactness {
        if length > self.context() { Exactness::Approximate } else { self.exactness(adapter, exact) }
    }

    /// Returns the vocabulary size.
    pub(in crate::engine) fn vocabulary(&self) -> usize {
        self.base().spec().vocab_size
    }

    /// Returns the number of positions of states that fit into `bytes` bytes.
    pub(super) fn positions(&self, bytes: u64) -> usize {
        let per_token = self.specs[0].footprint.per_token;
        bytes.checked_div(per_token).and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// Returns the number of positions that the model attends to.
    pub(in crate::engine) fn context(&self) -> usize {
        self.specs[0].context_length
    }

    /// Returns the limits on the shapes of passes.
    pub(in crate::engine) fn shapes(&self) -> Shapes {
        let (chunks, context, layers) = (self.chunks, self.context(), self.layers());
        Shapes { chunks, context, layers, step_rows: self.step_rows(), exact_rows: self.rows }
    }

    /// Returns the maximum number of rows of a decode pass including drafts, which [`Capacity`] accounts for.
    fn step_rows(&self) -> usize {
        step_rows(self.rows)
    }

    /// Returns true if the model has recurrent layers. Their states keep a snapshot after each draft row, and drafts are verified row by
    /// row.
    pub(in crate::engine) fn is_recurrent(&self) -> bool {
        self.recurrent
    }

    /// Returns the variant of the state of a sequence with `length` tokens.
    pub(in crate::engine) fn variant(&self, length: usize) -> Variant {
        self.base().spec().variant(length)
    }

    /// Returns true if a state can continue to a sequence of `length` tokens.
    pub(in crate::engine) fn fits(&self, state: &SequenceState, length: usize) -> bool {
        state.variant() == self.variant(length)
    }

    /// Replaces the state if the sequence has grown into another variant. It is then recomputed from its first token, as in transformers.
    pub(in crate::engine) fn renew_variant(&self, state: &mut SequenceState, length: usize) {
        if !self.fits(state, length) {
            *state = self.new_state(length);
        }
    }

    /// Creates an empty state for a sequence of `length` tokens, which may grow.
    pub(in crate::engine) fn new_state(&self, length: usize) -> SequenceState {
        let state = self.base().new_state(self.variant(length));
        match self.kv_bits {
            Some(bits) => state.quantized(bits),
            None => state,
        }
    }

    /// Returns the maximum number of rows of one decode pass through an adapter.
    pub(in crate::engine) fn most_rows(&self, adapter: usize, exact: bool) -> usize {
        let widest = if exact { self.checked_widths(adapter).last().copied() } else { None };
        widest.unwrap_or(self.rows)
    }

    /// Returns the maximum number of rows of an exact pass through this adapter or any other checked one.
    pub(in crate::engine) fn exact_rows(&self, adapter: usize) -> usize {
        if let Err(error) = self.exact_widths(adapter) {
            tracing::debug!(%error, "exact requests cannot run until the lost machine returns");
        }
        let checked = self.models.iter().filter_map(|it| it.exact_widths.get()?.last().copied());
        checked.min().unwrap_or(self.rows)
    }

    pub(in crate::engine) fn layers(&self) -> usize {
        self.base().spec().num_layers
    }

    /// Returns the batch of a decode step in the form to run. An `exact` batch runs span by span and is padded to a checked width.
    pub(super) fn step(&self, adapter: usize, batch: Batch, rows: usize, exact: bool) -> Result<Batch> {
        if !exact {
            return Ok(batch);
        }
        let width = self.exact_widths(adapter)?.iter().copied().find(|&width| width >= rows);
        batch.per_span().padded(width.unwrap_or(rows))
    }

    /// Starts a decode step through an adapter, with one token and its position for each state. In an `exact` step each row has the same
    /// bits as in a step of its own, if there are [widths](Self::exact_widths) for that.
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

    /// Starts a decode step with one or more tokens per state: the newest, and those of a draft. Each state comes with its tokens and the
    /// position of the first; the rows of the pass are in the same order. With `in_halves` it also returns the first layers, so that they
    /// can be waited for.
    pub(in crate::engine) fn verify(
        &self,
        adapter: usize,
        tokens: &[(Vec<u32>, usize)],
        states: &mut [&mut SequenceState],
        exact: bool,
        in_halves: bool,
    ) -> Result<(Rows, Pass, Option<Issued>)> {
        // Row by row, each row has the bits of a separate step.
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
        // The device computes the first layers while the graph of the others is built.
        let has_halves = self.first_half() > 0;
        let front = has_halves.then(|| self.issue_first_half(adapter, &mut pass, states)).transpose()?;
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
        // Of the last layer, the states need only the keys and values.
        states.iter().try_for_each(|state| state.start())
    }

    /// Returns the hidden states of all rows of a pass after the last norm, with padding.
    pub(in crate::engine) fn hidden(&self, adapter: usize, pass: &Pass) -> Result<Hidden> {
        self.model(adapter).normalized(pass.hidden()).map(Hidden::new)
    }

    /// Returns the hidden states, after the last norm, of the rows that get logits.
    pub(in crate::engine) fn logit_hidden(&self, pass: &Pass) -> Result<Hidden> {
        self.base().normalized(&pass.logit_hidden()?).map(Hidden::new)
    }

    /// Starts the logits of the rows that the spans of a pass request.
    pub(in crate::engine) fn logits(&self, adapter: usize, pass: &Pass) -> Result<Rows> {
        let logits = Rows::new(&self.model(adapter).logits(&pass.logit_hidden()?)?)?;
        logits.start()?;
        Ok(logits)
    }
}
