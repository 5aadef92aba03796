//! Finds when the tokens of a window are spoken, from the weights of the heads that align text and audio, by dynamic time warping. The steps
//! are those of Whisper's reference implementation. Invariant: pure.

/// The width of the median filter over positions.
const FILTER: usize = 7;

/// The sum of the filtered weights of all heads: a row for each token, with a number for each position of the audio.
pub(crate) struct AlignmentMatrix {
    sums: Vec<f64>,
    tokens: usize,
    positions: usize,
}

/// A step of the path back through the matrix.
#[derive(Clone, Copy)]
enum Step {
    Token,
    Position,
    Both,
}

impl AlignmentMatrix {
    /// Creates a matrix of zeros.
    pub(crate) fn new(tokens: usize, positions: usize) -> Self {
        Self { sums: vec![0.0; tokens * positions], tokens, positions }
    }

    /// Adds the weights of heads: for each head its rows.
    pub(crate) fn add(&mut self, heads: &[f32]) {
        for rows in heads.chunks_exact(self.sums.len().max(1)) {
            for (sums, row) in self.sums.chunks_mut(self.positions).zip(rows.chunks(self.positions)) {
                add_medians(row, sums);
            }
        }
    }

    /// Returns the first position of each token on the path with the greatest sum. Positions never decrease.
    pub(crate) fn starts(&self) -> Vec<u32> {
        let (width, mut starts) = (self.positions + 1, vec![0; self.tokens]);
        let steps = self.steps();
        let (mut token, mut position) = (self.tokens, self.positions);
        while token > 0 && position > 0 {
            starts[token - 1] = (position - 1) as u32;
            match steps[token * width + position] {
                Step::Both => (token, position) = (token - 1, position - 1),
                Step::Token => token -= 1,
                Step::Position => position -= 1,
            }
        }
        starts
    }

    /// Returns the step to each place of the matrix on the best path. The matrix has one more row and column of starts.
    fn steps(&self) -> Vec<Step> {
        let width = self.positions + 1;
        let mut steps = vec![Step::Position; (self.tokens + 1) * width];
        let mut above = vec![f32::INFINITY; width];
        above[0] = 0.0;
        for (token, sums) in self.sums.chunks(self.positions.max(1)).enumerate() {
            let mut costs = vec![f32::INFINITY; width];
            for (place, sum) in sums.iter().enumerate() {
                let (both, one, other) = (above[place], above[place + 1], costs[place]);
                let (cost, step) = if both < one && both < other {
                    (both, Step::Both)
                } else if one < both && one < other {
                    (one, Step::Token)
                } else {
                    (other, Step::Position)
                };
                costs[place + 1] = (f64::from(cost) - sum) as f32;
                steps[(token + 1) * width + place + 1] = step;
            }
            above = costs;
        }
        steps
    }
}

/// Adds the median around each number of `row` to `sums`. Numbers beyond an end are those before it, mirrored.
fn add_medians(row: &[f32], sums: &mut [f64]) {
    let (half, last) = (FILTER / 2, row.len().saturating_sub(1));
    if last < half {
        return sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    for (place, sum) in sums.iter_mut().enumerate() {
        let mut around = std::array::from_fn::<f32, FILTER, _>(|offset| {
            let at = (place + offset).abs_diff(half);
            row[if at > last { 2 * last - at } else { at }]
        });
        around.sort_unstable_by(f32::total_cmp);
        *sum += f64::from(around[half]);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn tokens_start_where_their_weights_do() {
        // Three tokens: positions 0 to 4, 5 to 11, and 12 to 19.
        let spans = [0..5, 5..12, 12..20];
        let weight = |span: &Range<i32>, place| if span.contains(&place) { 1.0 } else { -1.0 };
        let rows = spans.iter().flat_map(|span| (0..20).map(move |place| weight(span, place)));
        let weights: Vec<f32> = rows.collect();
        let mut matrix = AlignmentMatrix::new(3, 20);
        matrix.add(&weights.repeat(2));
        assert_eq!(matrix.starts(), [0, 5, 12]);
    }

    #[test]
    fn a_filter_removes_single_peaks_and_mirrors_ends() {
        let of = |row: &[f32]| {
            let mut sums = vec![0.0; row.len()];
            add_medians(row, &mut sums);
            sums
        };
        assert_eq!(of(&[0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0]), [0.0; 8]);
        // Around the first number: 4 3 2 1 2 3 4.
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), [3.0, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!(of(&[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0], "too short for the filter");
    }

    #[test]
    fn any_weights_give_a_start_for_each_token() {
        for (tokens, positions) in [(1, 1), (4, 1), (1, 9), (5, 3)] {
            for value in [0.0, f32::NAN, f32::INFINITY, f32::MIN] {
                let mut matrix = AlignmentMatrix::new(tokens, positions);
                matrix.add(&vec![value; tokens * positions]);
                let starts = matrix.starts();
                assert!(starts.is_sorted() && starts.len() == tokens, "{starts:?}");
                assert!(starts.iter().all(|start| (*start as usize) < positions), "{starts:?}");
            }
        }
    }
}
