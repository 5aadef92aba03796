//! A layer state of constant size: the last inputs of a convolution and what a recurrence remembers. It cannot be cut.

use mlx_rs::Array;

/// The state of a recurrent layer. Its arrays never change: an update puts others in their place, so a clone is a checkpoint.
#[derive(Clone, Default)]
pub struct RecurrentState {
    window: Option<Array>,
    memory: Option<Array>,
    length: usize,
}

impl RecurrentState {
    /// From what [`arrays`](Self::arrays) gave at this length.
    pub(super) fn from_arrays(mut arrays: impl Iterator<Item = Array>, length: usize) -> Self {
        Self { window: arrays.next(), memory: arrays.next(), length }
    }

    /// The rows before the next one, `[rows, channels]`; nothing before the first.
    pub(crate) fn window(&self) -> Option<&Array> {
        self.window.as_ref()
    }

    /// What the recurrence remembers, in f32; nothing before the first row.
    pub(crate) fn memory(&self) -> Option<&Array> {
        self.memory.as_ref()
    }

    /// The state after `count` more rows.
    pub(crate) fn replace(&mut self, window: Array, memory: Option<Array>, count: usize) {
        (self.window, self.memory) = (Some(window), memory);
        self.length += count;
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.window.iter().chain(&self.memory)
    }

    pub(super) fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}
