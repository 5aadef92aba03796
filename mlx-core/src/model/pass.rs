//! A pass on its way through the layers.

use mlx_rs::Array;
use mlx_rs::transforms::async_eval;

use super::batch::Batch;
use super::rope::{LONG, LongRows, Rotary};
use crate::array::slice_axis;
use crate::cache::SequenceState;
use crate::error::Result;

/// A forward pass that can stop after any layer, so that a long prompt does not delay other sequences.
pub struct Pass {
    pub(super) batch: Batch,
    /// The rotation of queries and keys for each rope of the model; empty before the first layer.
    pub(super) rotary: Vec<Rotary>,
    /// What layers get from the tokens themselves, `[T, layers, width]`.
    pub(super) per_layer_inputs: Option<Array>,
    /// What is added behind the first layers, `[T, hidden]` each: features of pictures.
    pub(super) deep: Vec<Array>,
    /// `[T, hidden]` after `layer` layers.
    pub(super) hidden: Array,
    pub(super) layer: usize,
}

/// What was issued of a pass up to some layer.
pub(crate) struct Issued(Array);

impl Issued {
    /// Waits until it is computed.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.0.eval()?)
    }
}

impl Pass {
    /// How many layers have been issued.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// The hidden state of all rows after those layers, `[T, hidden]`.
    pub fn hidden(&self) -> &Array {
        &self.hidden
    }

    /// Whether features of pictures are added behind the layer that comes next.
    pub(crate) fn is_before_features(&self) -> bool {
        self.layer < self.deep.len()
    }

    /// What it runs.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Puts it behind `layer` layers that another machine computed, with their hidden state `[T, hidden]` if anything reads it.
    pub(crate) fn move_to(&mut self, layer: usize, hidden: Option<Array>) {
        self.layer = layer;
        if let Some(hidden) = hidden {
            self.hidden = hidden;
        }
    }

    /// The same of the rows whose logits are needed, in the order of the spans. Where every row's are, padding follows.
    pub fn logit_hidden(&self) -> Result<Array> {
        match self.batch.logit_rows().as_deref() {
            None => Ok(self.hidden.clone()),
            Some(&[row]) => slice_axis(&self.hidden, 0, row, row + 1),
            Some(rows) => Ok(self.hidden.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?),
        }
    }

    /// Starts to compute what has been issued and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval([&self.hidden])?)
    }

    /// The same, to be waited for when more has been issued.
    pub(crate) fn issue(&self) -> Result<Issued> {
        self.start()?;
        Ok(Issued(self.hidden.clone()))
    }

    /// Waits for what has been issued.
    pub fn wait(&self) -> Result<()> {
        Ok(self.hidden.eval()?)
    }

    /// The rows that belong to `states` of the long variant.
    pub(super) fn long_rows(&self, states: &[&mut SequenceState]) -> LongRows {
        let is_long = |state: usize| states[state].variant() == LONG;
        let spans = self.batch.spans();
        if spans.iter().all(|span| !is_long(span.state)) {
            return LongRows::None;
        }
        if spans.iter().all(|span| is_long(span.state)) {
            return LongRows::All;
        }
        let rows = spans.iter().flat_map(|span| std::iter::repeat_n(is_long(span.state), span.len));
        let mut rows: Vec<bool> = rows.collect();
        rows.resize(self.batch.width(), false);
        LongRows::Some(Array::from_slice(&rows, &[rows.len() as i32, 1, 1, 1]))
    }
}
