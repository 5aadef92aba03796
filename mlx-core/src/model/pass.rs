//! A pass that is in progress.

use std::ops::Range;

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
    /// The per-layer inputs of the tokens, `[T, layers, width]`.
    pub(super) per_layer_inputs: Option<Array>,
    /// Features of pictures that are added to the output of the first layers, `[T, hidden]` for each layer.
    pub(super) deepstack: Vec<Array>,
    /// `[T, hidden]` after `layer` layers.
    pub(super) hidden: Array,
    pub(super) layer: usize,
}

/// The issued part of a pass, up to some layer.
pub(crate) struct Issued(Array);

impl Issued {
    /// Waits until it is computed.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.0.eval()?)
    }
}

impl Pass {
    /// Returns the number of issued layers.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Returns the hidden state of all rows after the issued layers, `[T, hidden]`.
    pub fn hidden(&self) -> &Array {
        &self.hidden
    }

    /// Returns the hidden state of some rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Array> {
        slice_axis(&self.hidden, 0, rows.start as i32, rows.end as i32)
    }

    /// Returns true if features of pictures are added to the output of the next layer.
    pub(crate) fn next_layer_adds_features(&self) -> bool {
        self.layer < self.deepstack.len()
    }

    /// Returns the batch of the pass.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Skips to the state after `layer` layers that another machine computed. `hidden` is their hidden state, `[T, hidden]`, if it is read.
    pub(crate) fn move_to(&mut self, layer: usize, hidden: Option<Array>) {
        self.layer = layer;
        if let Some(hidden) = hidden {
            self.hidden = hidden;
        }
    }

    /// Returns the hidden state of the rows with needed logits, in the order of spans. If all rows need logits, padding is included.
    pub fn logit_hidden(&self) -> Result<Array> {
        match self.batch.logit_rows().as_deref() {
            None => Ok(self.hidden.clone()),
            Some(&[row]) => slice_axis(&self.hidden, 0, row, row + 1),
            Some(rows) => Ok(self.hidden.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?),
        }
    }

    /// Starts to compute the issued layers and returns at once.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval([&self.hidden])?)
    }

    /// Like [`start`](Self::start), but returns a handle that waits for these layers even after more layers have been issued.
    pub(crate) fn issue(&self) -> Result<Issued> {
        self.start()?;
        Ok(Issued(self.hidden.clone()))
    }

    /// Waits for the issued layers.
    pub fn wait(&self) -> Result<()> {
        Ok(self.hidden.eval()?)
    }

    /// Returns a mask of the rows that belong to `states` of the long variant.
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
