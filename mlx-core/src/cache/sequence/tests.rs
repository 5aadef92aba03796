//! The byte counts of a state match its arrays after any changes, and no step asks MLX for sizes. A state with a store changes like one
//! without.

use std::any::Any;

use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype};
use proptest::prelude::*;

use super::super::disk::Layer;
use super::super::measure::measured;
use super::super::recurrent::RecurrentArrays;
use super::super::state_store::SavedPart;
use super::*;

impl SequenceState {
    /// Creates a state of one layer with `length` positions of one number each.
    pub(crate) fn of_zeros(length: usize) -> Self {
        let mut layer = LayerState::new(None);
        let rows = zeros_dtype(&[1, 2, length as i32, 1], Dtype::Float32).expect("it has a shape");
        layer.append(&rows).expect("there is room");
        let state = Self::new(vec![layer], Variant::default());
        state.eval().expect("it is computed");
        state
    }
}

/// Returns positions of a layer with two heads.
fn rows(count: usize) -> Array {
    zeros_dtype(&[1, 4, count as i32, 32], Dtype::Float32).expect("it has a shape")
}

/// Creates a state with a layer of each kind.
fn state() -> SequenceState {
    let layers = [
        LayerState::new(None),
        LayerState::new(Some(5)),
        LayerState::new(None).quantized(8),
        LayerState::recurrent(),
        LayerState::latent(24),
    ];
    SequenceState::new(layers.into(), Variant::default())
}

fn extend(state: &mut SequenceState, count: usize) {
    for layer in &mut state.layers {
        match layer {
            LayerState::Recurrent(state) => {
                let window = zeros_dtype(&[1, 3, 16], Dtype::Float16).expect("it has a shape");
                let memory = zeros_dtype(&[1, 2, 8, 8], Dtype::Float32).expect("it has a shape");
                state.replace(RecurrentArrays { conv_state: window, ssm_state: Some(memory) }, count);
            }
            LayerState::Latent(latents) => drop(latents.append(&rows(count)).expect("there is room")),
            layer => drop(layer.append(&rows(count)).expect("there is room")),
        }
    }
}

/// Sums the bytes of the layers and of the checkpoints, array by array.
fn walked(state: &SequenceState) -> (usize, usize) {
    let layers = state.layers.iter().flat_map(LayerState::arrays).map(|array| array.nbytes());
    (layers.sum(), state.checkpoints.arrays().map(|array| array.nbytes()).sum())
}

#[derive(Debug, Clone)]
enum Change {
    Extend(usize),
    Checkpoint(bool),
    Evict,
    Drop,
    Rollback(usize),
    Fork(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (1..90usize).prop_map(Change::Extend),
        4 => any::<bool>().prop_map(Change::Checkpoint),
        1 => Just(Change::Evict),
        1 => Just(Change::Drop),
        3 => (0..500usize).prop_map(Change::Rollback),
        2 => (0..500usize).prop_map(Change::Fork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_sums_are_what_a_walk_finds(changes in proptest::collection::vec(change(), 1..30)) {
        let _turn = crate::device_lock::device();
        let mut state = state();
        for change in changes {
            match change {
                Change::Extend(count) => extend(&mut state, count),
                Change::Checkpoint(marked) => state.checkpoint(marked).expect("it is taken"),
                Change::Evict => drop(state.evict_checkpoint()),
                Change::Drop => assert!(state.drop_checkpoints() < usize::MAX),
                Change::Rollback(length) => assert_ne!(
                    state.rollback(length.min(state.offset())),
                    Rollback::Earlier(usize::MAX)
                ),
                Change::Fork(length) => {
                    let length = state.nearest(length);
                    if let Some(fork) = state.fork(length).expect("it is copied") {
                        state = fork;
                    }
                }
            }
            prop_assert_eq!((state.bytes(), state.checkpoint_bytes()), walked(&state));
        }
    }
}

/// A store that keeps its layers in another state.
struct Stored(SequenceState);

impl StateStore for Stored {
    fn info(&self) -> StoreInfo {
        let Self(state) = self;
        StoreInfo {
            positions: state.offset(),
            min_truncate_length: state.min_truncate_length(),
            bytes: state.bytes(),
            checkpoint_bytes: state.checkpoint_bytes(),
            is_pooled: state.is_pooled(),
            needs_checkpoints: state.needs_checkpoints(),
            is_recurrent: state.is_recurrent(),
        }
    }

    fn quantize(&mut self, _bits: u8) {
        unreachable!("the states of this test are not quantized later");
    }

    fn shift(&mut self, kept: usize, dropped: usize) -> Result<()> {
        self.0.shift(kept, dropped, |_, keys| Ok(keys.clone()))
    }

    fn checkpoint(&mut self, marked: bool) -> Result<()> {
        self.0.checkpoint(marked)
    }

    fn rollback(&mut self, length: usize) {
        assert_eq!(self.0.rollback(length), Rollback::Done);
    }

    fn evict_checkpoint(&mut self) {
        self.0.evict_checkpoint();
    }

    fn drop_checkpoints(&mut self) {
        self.0.drop_checkpoints();
    }

    fn record_snapshots(&mut self, on: bool) {
        self.0.record_snapshots(on);
    }

    fn fork(&self, length: usize) -> Result<Box<dyn StateStore>> {
        Ok(Box::new(Self(self.0.fork(length)?.expect("the whole state can go back there"))))
    }

    fn export(&self, part: &SavedPart) -> Result<Option<Vec<Vec<Layer>>>> {
        self.0.export_part(part)
    }

    fn import(&mut self, part: &SavedPart, layers: &[&[Layer]]) -> Result<()> {
        self.0.import_part(part, &layers.iter().map(|arrays| arrays.to_vec()).collect::<Vec<_>>())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn extend_with_store(state: &mut SequenceState, count: usize) {
    extend(state, count);
    let store = state.store_mut().and_then(|store| store.as_any_mut().downcast_mut::<Stored>());
    extend(&mut store.expect("it has a store").0, count);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_state_with_a_store_changes_like_a_whole_one(
        here in 1..5usize,
        changes in proptest::collection::vec(change(), 1..30),
    ) {
        let _turn = crate::device_lock::device();
        let (mut whole, mut split) = (state(), state());
        let stored = SequenceState::new(split.layers.split_off(here), Variant::default());
        split = split.with_store(Box::new(Stored(stored)));
        for change in changes {
            match change {
                Change::Extend(count) => {
                    extend(&mut whole, count);
                    extend_with_store(&mut split, count);
                }
                Change::Checkpoint(marked) => {
                    whole.checkpoint(marked).expect("it is taken");
                    split.checkpoint(marked).expect("it is taken");
                }
                Change::Evict => {
                    let lengths = [whole.evict_checkpoint(), split.evict_checkpoint()].map(|gone| gone.map(|it| it.0));
                    prop_assert_eq!(lengths[0], lengths[1]);
                }
                Change::Drop => drop((whole.drop_checkpoints(), split.drop_checkpoints())),
                Change::Rollback(length) => {
                    let length = length.min(whole.offset());
                    prop_assert_eq!(whole.rollback(length), split.rollback(length));
                }
                Change::Fork(length) => {
                    let forks = [&whole, &split].map(|it| it.fork(it.nearest(length)).expect("a copy"));
                    if let [Some(one), Some(other)] = forks {
                        (whole, split) = (one, other);
                    }
                }
            }
            let of = |it: &SequenceState| (it.offset(), it.min_truncate_length(), it.checkpoints().collect::<Vec<_>>());
            prop_assert_eq!(of(&whole), of(&split));
        }
    }
}

/// Sizes are measured when arrays are created. A step with rows that fit measures none.
#[test]
fn accounting_asks_for_no_sizes() {
    const STEPS: usize = 200;
    let _turn = crate::device_lock::device();
    let mut states: Vec<SequenceState> = (0..32).map(|_| state()).collect();
    for state in &mut states {
        for _ in 0..8 {
            extend(state, 40);
            state.checkpoint(true).expect("it is taken");
        }
    }
    let before = measured();
    let (mut layers, mut checkpoints) = (0, 0);
    for _ in 0..STEPS {
        for state in &mut states {
            extend(state, 1);
        }
        layers = states.iter().map(SequenceState::bytes).sum();
        for _ in 0..5 {
            checkpoints = states.iter().map(SequenceState::checkpoint_bytes).sum();
        }
    }
    assert!(layers > 0 && checkpoints > 0);
    // A full buffer moves to a larger one, and a full window to its start: at most once in 64 positions.
    let moves = states.len() * states[0].layers.len() * (STEPS / 64 + 1);
    assert!(measured() - before <= moves, "{} sizes were measured", measured() - before);
}
