//! A layer state of constant size: the last inputs of a convolution and the state of a recurrence. It cannot be cut.

use mlx_rs::Array;

use super::measure::measure;

/// The state of a recurrent layer. Its arrays never change: an update puts others in their place, so a clone is a checkpoint.
#[derive(Clone, Default)]
pub struct RecurrentState {
    conv_state: Option<Array>,
    ssm_state: Option<Array>,
    /// The bytes of both arrays. Updates do not change them.
    bytes: usize,
    length: usize,
    /// The states before each update, while they are [recorded](Self::record_snapshots).
    snapshots: Option<Vec<Self>>,
}

impl RecurrentState {
    /// From what [`arrays`](Self::arrays) gave at this length.
    pub(super) fn from_arrays(mut arrays: impl Iterator<Item = Array>, length: usize) -> Self {
        let (conv_state, ssm_state) = (arrays.next(), arrays.next());
        let bytes = measure(conv_state.iter().chain(&ssm_state));
        Self { conv_state, ssm_state, bytes, length, snapshots: None }
    }

    /// The last inputs of the convolution, `[rows, channels]`; `None` before the first row.
    pub(crate) fn conv_state(&self) -> Option<&Array> {
        self.conv_state.as_ref()
    }

    /// The state of the recurrence, in f32; `None` before the first row.
    pub(crate) fn ssm_state(&self) -> Option<&Array> {
        self.ssm_state.as_ref()
    }

    /// Sets the state after `count` more rows.
    pub(crate) fn replace(&mut self, conv_state: Array, ssm_state: Option<Array>, count: usize) {
        if let Some(mut snapshots) = self.snapshots.take() {
            snapshots.push(self.clone());
            self.snapshots = Some(snapshots);
        }
        if self.conv_state.is_none() {
            self.bytes = measure([&conv_state].into_iter().chain(&ssm_state));
        }
        (self.conv_state, self.ssm_state) = (Some(conv_state), ssm_state);
        self.length += count;
    }

    /// Lets updates record the states that they replace, so that it can be cut to their lengths; or drops the recorded ones.
    pub(super) fn record_snapshots(&mut self, on: bool) {
        self.snapshots = on.then(Vec::new);
    }

    /// The shortest length that it can be cut to.
    pub(super) fn shortest_cut(&self) -> usize {
        self.snapshots
            .as_ref()
            .and_then(|snapshots| snapshots.first())
            .map_or(self.length, |first| first.length)
    }

    /// Goes back to a recorded length.
    pub(super) fn truncate(&mut self, length: usize) {
        let snapshots = self.snapshots.take();
        let earlier = snapshots.iter().flatten().find(|it| it.length == length).cloned();
        *self = earlier.unwrap_or_else(|| self.clone());
        self.snapshots =
            snapshots.map(|snapshots| snapshots.into_iter().filter(|it| it.length < length).collect());
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.conv_state.iter().chain(&self.ssm_state)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
