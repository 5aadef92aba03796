//! The largest values of a row, found in one pass. A greedy draw needs nothing else, and filters start from them.

use std::array::from_fn;

/// The number of values in a block, which its largest value represents.
pub(super) const BLOCK: usize = 64;

/// The number of values that the compiler compares in one vector.
const LANES: usize = 16;

/// The largest values of a row. NaN is ignored.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The largest value of each block.
    peaks: Vec<f32>,
    top: f32,
    is_broken: bool,
}

impl Scan {
    /// Reads a row.
    pub(super) fn read(&mut self, row: &[f32]) {
        self.peaks.clear();
        let mut nan = [false; LANES];
        let (blocks, rest) = row.as_chunks::<BLOCK>();
        self.peaks.extend(blocks.iter().map(|block| {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for chunk in block.as_chunks::<LANES>().0 {
                lanes = from_fn(|lane| larger(lanes[lane], chunk[lane]));
                nan = from_fn(|lane| nan[lane] | chunk[lane].is_nan());
            }
            largest_lane(lanes)
        }));
        if !rest.is_empty() {
            self.peaks.push(rest.iter().copied().fold(f32::NEG_INFINITY, larger));
        }
        self.top = self.peaks.iter().copied().fold(f32::NEG_INFINITY, larger);
        let is_nan = nan.contains(&true) || rest.iter().any(|value| value.is_nan());
        self.is_broken = is_nan || self.top == f32::INFINITY;
    }

    /// The largest value of the row; minus infinity if there is none.
    pub(super) fn top(&self) -> f32 {
        self.top
    }

    /// The largest value of each block of the row.
    pub(super) fn peaks(&self) -> &[f32] {
        &self.peaks
    }

    /// Returns true if the row has a NaN or plus infinity.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the first index of the largest value in the row that was read.
    pub(super) fn argmax(&self, row: &[f32]) -> usize {
        let block = self.peaks.iter().position(|&peak| peak >= self.top).unwrap_or(0);
        let start = block * BLOCK;
        start + row[start..].iter().position(|&value| value >= self.top).unwrap_or(0)
    }
}

fn larger(best: f32, value: f32) -> f32 {
    if value > best { value } else { best }
}

/// Reduces the lanes by halves. Comparing them one after the other would serialize on latency.
fn largest_lane(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_agrees_with_the_plain_way() {
        for length in [0, 1, 15, 63, 64, 65, 128, 5000] {
            let row: Vec<f32> = (0..length).map(|place| ((place * 7919) % 503) as f32 / 30.0 - 8.0).collect();
            let (best, top) = row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (place, &value)| {
                if value > best.1 { (place, value) } else { best }
            });
            let mut scan = Scan::default();
            scan.read(&[f32::NAN; 3]);
            scan.read(&row);
            assert_eq!((scan.argmax(&row), scan.top(), scan.is_broken()), (best, top, false), "{length}");
            let peaks =
                row.chunks(BLOCK).map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(scan.peaks(), peaks.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_broken_value_is_found_wherever_it_is() {
        let mut scan = Scan::default();
        for place in [0, 17, 63, 64, 150, 199] {
            for (value, is_broken) in [
                (f32::NAN, true),
                (-f32::NAN, true),
                (f32::from_bits(0x7f80_0001), true),
                (f32::INFINITY, true),
                (f32::NEG_INFINITY, false),
                (f32::MAX, false),
                (-0.0, false),
            ] {
                let mut row = vec![-1.0; 200];
                row[place] = value;
                scan.read(&row);
                assert_eq!(scan.is_broken(), is_broken, "{value} at {place}");
            }
        }
        scan.read(&[f32::NEG_INFINITY; 100]);
        assert_eq!((scan.top(), scan.argmax(&[f32::NEG_INFINITY; 100])), (f32::NEG_INFINITY, 0));
    }
}
