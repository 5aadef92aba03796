//! A layer state of constant size: the last inputs of a convolution and what a recurrence remembers. It cannot be cut.

use mlx_rs::Array;

use super::measure::measure;

/// The state of a recurrent layer. Its arrays never change: an update puts others in their place, so a clone is a checkpoint.
#[derive(Clone, Default)]
pub struct RecurrentState {
    window: Option<Array>,
    memory: Option<Array>,
    /// The bytes of both arrays. Updates do not change them.
    bytes: usize,
    length: usize,
    /// The states before each update since it is [traced](Self::trace).
    trail: Option<Vec<Self>>,
}

impl RecurrentState {
    /// From what [`arrays`](Self::arrays) gave at this length.
    pub(super) fn from_arrays(mut arrays: impl Iterator<Item = Array>, length: usize) -> Self {
        let (window, memory) = (arrays.next(), arrays.next());
        let bytes = measure(window.iter().chain(&memory));
        Self { window, memory, bytes, length, trail: None }
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
        if let Some(mut trail) = self.trail.take() {
            trail.push(self.clone());
            self.trail = Some(trail);
        }
        if self.window.is_none() {
            self.bytes = measure([&window].into_iter().chain(&memory));
        }
        (self.window, self.memory) = (Some(window), memory);
        self.length += count;
    }

    /// From now on keeps handles of the states that updates replace, so that it can be cut to their lengths; or drops those that it has.
    pub(super) fn trace(&mut self, on: bool) {
        self.trail = on.then(Vec::new);
    }

    /// The shortest length that it can be cut to.
    pub(super) fn shortest_cut(&self) -> usize {
        self.trail.as_ref().and_then(|trail| trail.first()).map_or(self.length, |first| first.length)
    }

    /// Goes back to a length that it had since it is traced.
    pub(super) fn truncate(&mut self, length: usize) {
        let trail = self.trail.take();
        let earlier = trail.iter().flatten().find(|it| it.length == length).cloned();
        *self = earlier.unwrap_or_else(|| self.clone());
        self.trail = trail.map(|trail| trail.into_iter().filter(|it| it.length < length).collect());
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.window.iter().chain(&self.memory)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
