//! A layer state of constant size: the last inputs of a convolution and the state of a recurrence. It cannot be truncated. The states
//! of a decode step are rows of shared arrays, so that the step is one update without copies.

use std::sync::{Arc, Mutex, PoisonError};

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::measure::measure;
use crate::array::take_rows;
use crate::error::Result;

/// The arrays of the recurrent states of some sequences.
#[derive(Clone)]
pub(crate) struct RecurrentArrays {
    /// The last inputs of the convolution, `[S, rows, channels]`.
    pub(crate) conv_state: Array,
    /// The state of the recurrence, `[S, ..]` of f32. Short convolutions do not have one.
    pub(crate) ssm_state: Option<Array>,
}

impl RecurrentArrays {
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        std::iter::once(&self.conv_state).chain(&self.ssm_state)
    }

    fn sequences(&self) -> usize {
        self.conv_state.dim(0) as usize
    }

    /// Applies `change` to each array.
    fn map(&self, change: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        let ssm_state = self.ssm_state.as_ref().map(&change).transpose()?;
        Ok(Self { conv_state: change(&self.conv_state)?, ssm_state })
    }

    /// Returns the rows of these sequences, in this order.
    fn of(&self, sequences: &[usize]) -> Result<Self> {
        self.map(|array| take_rows(array, sequences))
    }

    /// Concatenates the rows. Either all parts have a recurrence state, or none has.
    fn joined(parts: &[Self]) -> Result<Self> {
        if let [only] = parts {
            return Ok(only.clone());
        }
        let windows: Vec<&Array> = parts.iter().map(|part| &part.conv_state).collect();
        let ssm_states: Vec<&Array> = parts.iter().filter_map(|part| part.ssm_state.as_ref()).collect();
        let ssm_state = if ssm_states.is_empty() { None } else { Some(concatenate(&ssm_states, 0)?) };
        Ok(Self { conv_state: concatenate(&windows, 0)?, ssm_state })
    }
}

/// A row of shared arrays. The lock exists because MLX arrays cannot be shared between threads.
#[derive(Clone)]
struct ArrayRow {
    all: Arc<Mutex<RecurrentArrays>>,
    index: usize,
    /// The number of rows.
    count: usize,
}

impl ArrayRow {
    /// Returns a place for each row of `arrays`.
    fn of_all(arrays: RecurrentArrays) -> impl Iterator<Item = Self> {
        let (count, all) = (arrays.sequences(), Arc::new(Mutex::new(arrays)));
        (0..count).map(move |index| Self { all: Arc::clone(&all), index, count })
    }

    fn all(&self) -> RecurrentArrays {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The state of a recurrent layer. Updates replace its arrays and never modify them, so a clone is a checkpoint.
/// [`detached`](Self::detached) makes a clone that shares no memory with other sequences.
#[derive(Clone, Default)]
pub struct RecurrentState {
    place: Option<ArrayRow>,
    /// The bytes of its row. Updates do not change this number.
    bytes: usize,
    length: usize,
    /// The states before each update, while [recording](Self::record_snapshots).
    snapshots: Option<Vec<Self>>,
}

impl RecurrentState {
    /// Creates a state from the [contents](Self::contents) of a state with this length.
    pub(super) fn from_contents(arrays: &[Array], length: usize) -> Result<Self> {
        let mut arrays = arrays.iter().map(|array| array.expand_dims(0));
        let (conv_state, ssm_state) = (arrays.next().transpose()?, arrays.next().transpose()?);
        let bytes = measure(conv_state.iter().chain(&ssm_state));
        let place = conv_state
            .and_then(|conv_state| ArrayRow::of_all(RecurrentArrays { conv_state, ssm_state }).next());
        Ok(Self { place, bytes, length, snapshots: None })
    }

    /// Returns its arrays, with one row; `None` before the first row of the sequence.
    pub(crate) fn own_arrays(&self) -> Result<Option<RecurrentArrays>> {
        self.place.as_ref().map(|place| place.all().of(&[place.index])).transpose()
    }

    /// Returns arrays with a row for each state, in this order. `empty` creates the row of a state that has none yet. Copies nothing if the
    /// states are all rows of one array, in order.
    pub(crate) fn gathered(
        states: &[&Self],
        empty: impl Fn() -> Result<RecurrentArrays>,
    ) -> Result<RecurrentArrays> {
        let is_beside = |one: &&&Self, next: &&&Self| match (&one.place, &next.place) {
            (Some(one), Some(next)) => Arc::ptr_eq(&one.all, &next.all),
            _ => false,
        };
        let parts = states.chunk_by(|one, next| is_beside(&one, &next)).map(|run| {
            let Some(first) = &run[0].place else { return empty() };
            let places = run.iter().filter_map(|state| Some(state.place.as_ref()?.index));
            first.all().of(&places.collect::<Vec<_>>())
        });
        RecurrentArrays::joined(&parts.collect::<Result<Vec<_>>>()?)
    }

    /// Advances each state by one position, with its row of `all`.
    pub(crate) fn replace_all(states: &mut [&mut Self], all: RecurrentArrays) {
        for (state, place) in states.iter_mut().zip(ArrayRow::of_all(all)) {
            state.advance(place, 1);
        }
    }

    /// Advances the state by `count` positions, with arrays of one row.
    pub(crate) fn replace(&mut self, arrays: RecurrentArrays, count: usize) {
        if let Some(place) = ArrayRow::of_all(arrays).next() {
            self.advance(place, count);
        }
    }

    fn advance(&mut self, place: ArrayRow, count: usize) {
        if let Some(mut snapshots) = self.snapshots.take() {
            snapshots.push(self.clone());
            self.snapshots = Some(snapshots);
        }
        if self.place.is_none() {
            self.bytes = measure(place.all().arrays()) / place.count;
        }
        self.place = Some(place);
        self.length += count;
    }

    /// Starts to record the states that updates replace, so that it can be truncated to their lengths. If `on` is false, drops them and stops.
    pub(super) fn record_snapshots(&mut self, on: bool) {
        self.snapshots = on.then(Vec::new);
    }

    /// The shortest length that it can be truncated to.
    pub(super) fn min_truncate_length(&self) -> usize {
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

    /// Returns true if it shares its arrays with other sequences.
    pub(super) fn is_pooled(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.count > 1)
    }

    /// Returns a copy that shares no arrays with other sequences.
    pub(super) fn detached(&self) -> Result<Self> {
        if !self.is_pooled() {
            return Ok(Self { snapshots: None, ..self.clone() });
        }
        let own = self.own_arrays()?.map(|arrays| arrays.map(|array| Ok(array.contiguous()?)));
        let place = own.transpose()?.and_then(|own| ArrayRow::of_all(own).next());
        Ok(Self { place, snapshots: None, ..self.clone() })
    }

    /// Returns its `conv_state`, `[rows, channels]`, and its `ssm_state`.
    pub(super) fn contents(&self) -> Result<Vec<Array>> {
        let Some(own) = self.own_arrays()? else { return Ok(Vec::new()) };
        own.arrays().map(|array| Ok(array.squeeze_axes(&[0])?)).collect()
    }

    /// Returns handles of its arrays, which other sequences may share.
    pub(super) fn arrays(&self) -> Vec<Array> {
        self.place.iter().flat_map(|place| place.all().arrays().cloned().collect::<Vec<_>>()).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
