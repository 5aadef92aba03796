//! Sequences join, leave, grow, roll back, fork and move out at random. Rows see exactly the appended values, and no step copies them.

use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype};
use proptest::prelude::*;

use super::super::capacity::capacity;
use super::super::seen::PackedRows;
use super::*;
use crate::array::{active_memory, host, peak_memory, reset_peak_memory};

const HEADS: i32 = 2;
const SIZE: i32 = 64;
const WINDOW: usize = 70;

/// A kind of layer.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Full,
    Sliding,
    Latent,
    Quantized,
}

impl Kind {
    fn state(self) -> LayerState {
        match self {
            Self::Full => LayerState::new(None),
            Self::Sliding => LayerState::new(Some(WINDOW)),
            Self::Latent => LayerState::latent(SIZE as usize / 2),
            Self::Quantized => LayerState::new(None).quantized(8),
        }
    }

    /// Returns rows of these values in the form of a decode step.
    fn added(self, values: &[f32]) -> Vec<Array> {
        let rows = |heads: i32, sign: f32| {
            let numbers: Vec<f32> = values
                .iter()
                .flat_map(|&value| std::iter::repeat_n(sign * value, (heads * SIZE) as usize))
                .collect();
            Array::from_slice(&numbers, &[values.len() as i32, heads, 1, SIZE])
        };
        match self {
            Self::Latent => vec![rows(1, 1.0)],
            _ => vec![rows(HEADS, 1.0), rows(HEADS, -1.0)],
        }
    }

    /// Returns rows of these values in the form of a prompt chunk.
    fn chunk(self, values: &[f32]) -> Array {
        let parts: Vec<Array> =
            self.added(values).iter().map(|part| part.swap_axes(0, 2).expect("it has axes")).collect();
        mlx_rs::ops::concatenate(&parts, 1).expect("they fit")
    }
}

/// Returns the last number of the first head for each slot and position, for keys and values.
fn numbers(seen: &Seen) -> [Vec<Vec<f32>>; 2] {
    let (keys, values) = match seen {
        Seen::Plain { keys, values } => (keys.clone(), values.clone()),
        Seen::Packed { keys, values } => {
            let plain = |rows: &PackedRows| {
                let [numbers, scales, biases] = &rows.arrays;
                mlx_rs::ops::dequantize(numbers, scales, biases, 64, rows.bits).expect("they are packed")
            };
            (plain(keys), plain(values))
        }
    };
    [keys, values].map(|rows| {
        let (slots, columns, size) = (rows.dim(0), rows.dim(2), rows.dim(3));
        let first = slice_axis(&slice_axis(&rows, 3, size - 1, size).expect("an axis"), 1, 0, 1);
        let first = first.expect("an axis").reshape(&[slots, columns]).expect("the same numbers");
        let first = first.contiguous().expect("a copy");
        first.eval().expect("it is computed");
        host::<f32>(&first).expect("floats").chunks(columns as usize).map(<[f32]>::to_vec).collect()
    })
}

/// A sequence: its state and the values that it should contain.
struct Sequence {
    state: LayerState,
    values: Vec<f32>,
    promised: usize,
}

impl Sequence {
    fn new(kind: Kind, length: usize, promised: usize, next: &mut f32) -> Self {
        let values: Vec<f32> = (0..length).map(|_| unique(next)).collect();
        let mut state = kind.state();
        if length > 0 {
            state.append(&kind.chunk(&values)).expect("it is appended");
        }
        Self { state, values, promised }
    }
}

fn unique(next: &mut f32) -> f32 {
    *next += 1.0;
    *next
}

#[derive(Debug, Clone)]
enum Change {
    /// Appends up to this many rows to each sequence whose bit is not set.
    Step(u16, usize),
    Join(usize, usize),
    Leave(usize),
    Rollback(usize, usize),
    Fork(usize),
    /// Appends a row to one sequence only, as an exact step does.
    Alone(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<u16>(), 1..4usize).prop_map(|(without, most)| Change::Step(without & (without >> 3), most)),
        3 => (1..600usize, 0..900usize).prop_map(|(length, more)| Change::Join(length, length + more)),
        2 => (0..8usize).prop_map(Change::Leave),
        1 => (0..8usize, 1..4usize).prop_map(|(at, count)| Change::Rollback(at, count)),
        1 => (0..8usize).prop_map(Change::Fork),
        1 => (0..8usize).prop_map(Change::Alone),
    ]
}

/// Appends rows to these sequences and compares what each row sees.
fn step(kind: Kind, sequences: &mut [Sequence], without: u16, most: usize, next: &mut f32) {
    let (mut of_rows, mut values) = (Vec::new(), Vec::new());
    for (index, sequence) in sequences.iter_mut().enumerate() {
        if without & (1 << index) != 0 {
            continue;
        }
        for _ in 0..=(index + most) % most {
            let value = unique(next);
            of_rows.push(index);
            values.push(value);
            sequence.values.push(value);
        }
    }
    if of_rows.is_empty() {
        return;
    }
    let promised: Vec<usize> = sequences.iter().map(|sequence| sequence.promised).collect();
    let mut states: Vec<&mut LayerState> = sequences.iter_mut().map(|it| &mut it.state).collect();
    let rows = StepRows { states: &of_rows, promised: &promised, columns: &Columns::default() };
    let buckets = append_rows(&mut states, &rows, &kind.added(&values)).expect("they are appended");
    let buckets = buckets.expect("they can be side by side");
    let mut found = 0;
    for bucket in &buckets {
        let [keys, _] = numbers(&bucket.seen);
        for &(row, place) in &bucket.row_positions {
            found += 1;
            let (sequence, last) = (&sequences[of_rows[row]], bucket.last_positions[place] as usize);
            assert!((sequence.values[last] - values[row]).abs() < 0.5);
            let columns = &keys[place / bucket.rows_per_slot];
            let first = if matches!(kind, Kind::Sliding) { (last + 1).saturating_sub(WINDOW) } else { 0 };
            for position in first..=last {
                let value = columns[position % columns.len()];
                let near = (value - sequence.values[position]).abs() <= value.abs() / 100.0;
                assert!(near, "row {row} sees {value} at {position} and not {}", sequence.values[position]);
            }
        }
    }
    assert_eq!(found, of_rows.len(), "every row has a place");
    assert!(sequences.iter().all(|it| it.state.len() == it.values.len()));
}

/// Compares a copy of a sequence with its values.
fn check(kind: Kind, sequence: &Sequence) {
    let length = sequence.values.len();
    let mut fork = sequence.state.fork(length).expect("it can be copied");
    let mut next = 0.5;
    let value = unique(&mut next);
    let seen = fork.append(&kind.chunk(&[value])).expect("it is appended");
    let [keys, values] = numbers(&seen);
    let expected: Vec<f32> = sequence.values.iter().copied().chain([value]).collect();
    let expected = &expected[expected.len() - keys[0].len()..];
    for (found, sign) in
        [(&keys[0], 1.0), (&values[0], if matches!(kind, Kind::Latent) { 1.0 } else { -1.0 })]
    {
        for (value, expected) in found.iter().zip(expected) {
            assert!((value - sign * expected).abs() <= expected.abs() / 100.0, "{value} and not {expected}");
        }
    }
}

fn run(kind: Kind, changes: Vec<Change>) {
    let _turn = crate::device_lock::device();
    let mut next = 0.0;
    let mut sequences = vec![Sequence::new(kind, 3, 0, &mut next), Sequence::new(kind, 300, 700, &mut next)];
    for change in changes {
        let at = |index: usize| index % sequences.len().max(1);
        match change {
            Change::Step(without, most) => step(kind, &mut sequences, without, most, &mut next),
            Change::Join(length, promised) if sequences.len() < 6 => {
                sequences.push(Sequence::new(kind, length, promised, &mut next));
            }
            Change::Leave(index) if sequences.len() > 1 => drop(sequences.remove(at(index))),
            Change::Rollback(index, count) => {
                let place = at(index);
                let sequence = &mut sequences[place];
                let length = sequence.values.len().saturating_sub(count);
                if length >= sequence.state.min_truncate_length() {
                    sequence.state.truncate(length);
                    sequence.values.truncate(length);
                }
            }
            Change::Fork(index) => {
                let place = at(index);
                check(kind, &sequences[place]);
            }
            Change::Alone(index) => {
                let place = at(index);
                let (value, sequence) = (unique(&mut next), &mut sequences[place]);
                sequence.state.append(&kind.chunk(&[value])).expect("it is appended");
                sequence.values.push(value);
            }
            Change::Join(..) | Change::Leave(_) => {}
        }
    }
    for sequence in &sequences {
        check(kind, sequence);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_see_what_was_appended(changes in proptest::collection::vec(change(), 1..30), kind in 0..4usize) {
        run([Kind::Full, Kind::Sliding, Kind::Latent, Kind::Quantized][kind], changes);
    }
}

#[test]
fn a_step_of_the_same_sequences_writes_in_place() {
    let _turn = crate::device_lock::device();
    let rows = |sequences: i32, count: i32| {
        zeros_dtype(&[sequences, 8, count, 64], Dtype::Float32).expect("it has a shape")
    };
    let mut layers: Vec<LayerState> = (0..4).map(|_| LayerState::new(None)).collect();
    for layer in &mut layers {
        layer.append(&rows(1, 1000)).expect("it is appended");
    }
    let added = [slice_axis(&rows(4, 1), 1, 0, 4), slice_axis(&rows(4, 1), 1, 4, 8)].map(|part| {
        let part = part.expect("it has heads").contiguous().expect("a copy");
        part.eval().expect("it is computed");
        part
    });
    for step in 0..4 {
        let before = active_memory().expect("a figure");
        reset_peak_memory().expect("a device");
        let mut states: Vec<&mut LayerState> = layers.iter_mut().collect();
        let rows = StepRows { states: &[0, 1, 2, 3], promised: &[2000; 4], columns: &Columns::default() };
        let buckets = append_rows(&mut states, &rows, &added).expect("it is appended");
        assert_eq!(buckets.expect("all keep every position").len(), 1);
        for array in states[0].arrays() {
            array.eval().expect("it is computed");
        }
        let taken = peak_memory().expect("a figure").saturating_sub(before);
        let whole: usize = states.iter().map(|state| state.bytes()).sum();
        // The first step moves the sequences into one pool.
        assert!(step == 0 || taken < whole / 100, "step {step}: {taken} bytes of {whole}");
        assert_eq!(whole, 4 * capacity(1001 + step) * 8 * 64 * 4);
    }
}

#[test]
fn only_the_sequence_that_joins_is_copied() {
    let _turn = crate::device_lock::device();
    let mut next = 0.0;
    let mut sequences: Vec<Sequence> =
        (0..3).map(|_| Sequence::new(Kind::Full, 1000, 4000, &mut next)).collect();
    step(Kind::Full, &mut sequences, 0, 1, &mut next);
    sequences.push(Sequence::new(Kind::Full, 1000, 4000, &mut next));
    for sequence in &sequences {
        sequence.state.arrays().iter().for_each(|array| array.eval().expect("it is computed"));
    }
    let own = sequences[3].state.bytes();
    let before = active_memory().expect("a figure");
    reset_peak_memory().expect("a device");
    let promised = vec![4000; 4];
    let mut states: Vec<&mut LayerState> = sequences.iter_mut().map(|it| &mut it.state).collect();
    let rows = StepRows { states: &[0, 1, 2, 3], promised: &promised, columns: &Columns::default() };
    append_rows(&mut states, &rows, &Kind::Full.added(&[1.0, 2.0, 3.0, 4.0])).expect("they are appended");
    states[0].arrays().iter().for_each(|array| array.eval().expect("it is computed"));
    let taken = peak_memory().expect("a figure").saturating_sub(before);
    assert!(taken < 2 * own, "{taken} bytes for one of {own}");
}
