//! Checks, before the first exact request, that a row's bits do not depend on the other rows of its step. Invariant: each accepted width
//! was compared bit for bit on this machine, with this model's own weights.

use std::path::Path;
use std::time::Instant;

use crate::array::Rows;
use crate::cache::{SequenceState, Variant};
use crate::engine::options::EngineOptions;
use crate::error::Result;
use crate::model::{self, Batch, Model};

/// The maximum number of rows of a step without drafts.
pub(in crate::engine) const MAX_ROWS: usize = 32;

/// The number of timed runs of a step.
const TIMES: usize = 5;

/// The widths to check.
const WIDTHS: [usize; 6] = [1, 2, 4, 8, 16, MAX_ROWS];

/// The numbers of rows that a class of widths is optimized for. They are checked even for engines with few rows, so that all engines of a
/// machine choose the same bits.
const COMMON: [usize; 4] = [1, 2, 4, 8];

/// Returns the widths at which a row's logits have the same bits at every position and with any other rows, for steps of up to `rows` rows.
/// They are in ascending order, and empty if there is no such width. A step is padded to the next of them.
pub(in crate::engine) fn exact_widths(model: &dyn Model, rows: usize) -> Result<Vec<usize>> {
    let mut check = Check::new(model)?;
    let mut classes: Vec<(Vec<u32>, Vec<usize>)> = Vec::new();
    for width in WIDTHS.into_iter().filter(|width| COMMON.contains(width) || *width < 2 * rows) {
        let Some(bits) = check.bits_at(width)? else { continue };
        match classes.iter_mut().find(|class| class.0 == bits) {
            Some((_, widths)) => widths.push(width),
            None => classes.push((bits, vec![width])),
        }
    }
    let mut widths = best(classes.into_iter().map(|(_, widths)| widths)).unwrap_or_default();
    // Wider steps would only be padded.
    let enough = widths.iter().position(|width| *width >= rows).map_or(widths.len(), |place| place + 1);
    widths.truncate(enough);
    Ok(widths)
}

/// Returns the class with the lowest cost for the common numbers of rows. It uses no measured times, since engines that measured other
/// times would choose other bits. It also ignores wider steps, which not all engines check.
fn best(classes: impl Iterator<Item = Vec<usize>>) -> Option<Vec<usize>> {
    let common = |widths: &Vec<usize>| -> Vec<usize> {
        widths.iter().copied().filter(|width| COMMON.contains(width)).collect()
    };
    let classes = classes.filter(|widths| !common(widths).is_empty());
    classes.min_by(|one, other| cost(&common(one)).total_cmp(&cost(&common(other))))
}

/// Returns the cost of steps of the common numbers of rows at these widths, as a multiple of reading the weights once.
fn cost(widths: &[usize]) -> f64 {
    let pass = |width: usize| 1.0 + width as f64 / 8.0;
    let step = |rows: &usize| {
        let widest = widths[widths.len() - 1];
        let whole = (rows / widest) as f64 * pass(widest);
        let rest = rows % widest;
        whole + widths.iter().find(|width| rest > 0 && **width >= rest).map_or(0.0, |width| pass(*width))
    };
    COMMON.iter().map(step).sum()
}

/// The properties of a decode step with a given number of rows on this device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWidth {
    /// The number of rows.
    pub rows: usize,
    /// The narrowest step with the same bits per row; `None` if a row's bits depend on its position.
    pub same_bits_as: Option<usize>,
    /// The duration of the fastest of several steps, in seconds.
    pub seconds: f64,
}

/// Measures steps of 1 to 32 rows of the model in `folder`.
pub fn step_widths(folder: &Path, options: &EngineOptions) -> Result<Vec<StepWidth>> {
    let model = model::load(folder, options.weights()?, &mut |_, _| {})?;
    let mut check = Check::new(model.as_ref())?;
    let mut classes: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut widths = Vec::new();
    for rows in WIDTHS {
        let bits = check.bits_at(rows)?;
        let mut seconds = f64::INFINITY;
        for _ in 0..TIMES {
            let begin = Instant::now();
            check.step(rows, |_| true)?.values()?;
            seconds = seconds.min(begin.elapsed().as_secs_f64());
        }
        let same_bits_as = bits.map(|bits| {
            let known = classes.iter().find(|class| class.1 == bits).map(|class| class.0);
            known.unwrap_or_else(|| {
                classes.push((rows, bits));
                rows
            })
        });
        widths.push(StepWidth { rows, same_bits_as, seconds });
    }
    Ok(widths)
}

struct Check<'a> {
    model: &'a dyn Model,
    /// A short text that all rows continue.
    text: SequenceState,
    random: u64,
}

/// The length of the text.
const TEXT: usize = 5;

impl<'a> Check<'a> {
    fn new(model: &'a dyn Model) -> Result<Self> {
        let mut check = Self { model, text: model.new_state(Variant::default()), random: 1 };
        let tokens: Vec<u32> = (0..TEXT).map(|_| check.token()).collect();
        model.forward(Batch::prompt(&tokens, 0), &mut [&mut check.text])?;
        check.text.eval()?;
        Ok(check)
    }

    fn token(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % self.model.spec().vocab_size as u64) as u32
    }

    /// Returns the bits of the probe row in steps of `width` rows, if they are the same at every position. First the even positions hold
    /// the probe and the odd ones random tokens, then vice versa.
    fn bits_at(&mut self, width: usize) -> Result<Option<Vec<u32>>> {
        let mut found: Option<Vec<u32>> = None;
        for parity in 0..width.min(2) {
            let probe = |place: usize| place % 2 == parity;
            let logits = self.step(width, probe)?;
            for (_, row) in logits.values()?.chunks_exact(logits.width()).enumerate().filter(|it| probe(it.0))
            {
                let bits: Vec<u32> = row.iter().map(|logit| logit.to_bits()).collect();
                if found.get_or_insert_with(|| bits.clone()) != &bits {
                    return Ok(None);
                }
            }
        }
        Ok(found)
    }

    fn step(&mut self, width: usize, probe: impl Fn(usize) -> bool) -> Result<Rows> {
        let copy = || Ok(self.text.fork(TEXT)?.expect("a state reaches its own length"));
        let mut states = (0..width).map(|_| copy()).collect::<Result<Vec<_>>>()?;
        let mut token = |place| if probe(place) { 1 } else { self.token() };
        let rows: Vec<(u32, usize)> = (0..width).map(|place| (token(place), TEXT)).collect();
        let mut states: Vec<&mut SequenceState> = states.iter_mut().collect();
        let hidden = self.model.forward(Batch::decode(&rows).per_span(), &mut states)?;
        Rows::new(&self.model.logits(&hidden)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(classes: &[&[usize]]) -> Vec<usize> {
        best(classes.iter().map(|widths| widths.to_vec())).expect("a class")
    }

    #[test]
    fn a_class_is_chosen_for_the_steps_that_are_common() {
        // The expected classes of shared kernels: on a CPU, on M1 and M2, and on M3 and later.
        assert_eq!(chosen(&[&[1, 2, 4, 8, 16, 32]]), [1, 2, 4, 8, 16, 32]);
        assert_eq!(chosen(&[&[1, 2, 4], &[8, 16, 32]]), [1, 2, 4]);
        assert_eq!(chosen(&[&[1], &[2, 4, 8], &[16, 32]]), [2, 4, 8]);
        assert_eq!(chosen(&[&[1], &[2], &[8]]), [8]);
        // An engine with few rows does not check wide steps, and an engine with many rows chooses the same class.
        assert_eq!(chosen(&[&[1], &[16, 32]]), [1]);
        assert_eq!(best([vec![16, 32]].into_iter()), None);
    }

    #[test]
    fn more_rows_than_the_widest_step_take_several() {
        assert!((cost(&[4]) - (1.5 + 1.5 + 1.5 + 3.0)).abs() < 1e-12);
        assert!((cost(&[1]) - 1.125 * 15.0).abs() < 1e-12);
    }
}
