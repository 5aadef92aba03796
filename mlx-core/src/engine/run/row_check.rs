//! The check before the first exact request that a row's bits do not depend on the other rows of its step. Invariant: what passes was compared bit for
//! bit on this machine, with this model's own weights.

use std::path::Path;
use std::time::Instant;

use crate::array::Rows;
use crate::cache::{SequenceState, Variant};
use crate::engine::options::EngineOptions;
use crate::error::Result;
use crate::model::{self, Batch, Model};

/// The most rows of a step.
pub(in crate::engine) const MOST_ROWS: usize = 32;

/// How often a step is timed.
const TIMES: usize = 5;

/// Widths that may set the standard, best first.
const STANDARDS: [usize; 5] = [8, 16, 4, 2, 1];

/// The widths at which a row's logits are the same bits at every place among any neighbors, in rising order, for steps of up to
/// `rows` rows. A step runs at the next of them, filled up with padding; empty if there is no such width.
pub(in crate::engine) fn exact_widths(model: &dyn Model, rows: usize) -> Result<Vec<usize>> {
    let mut check = Check::new(model)?;
    for standard in STANDARDS {
        let Some(bits) = check.bits_at(standard)? else { continue };
        let mut widths = vec![];
        for width in [1, 2, 4, 8, 16, 32] {
            let needed = width < 2 * rows && width <= MOST_ROWS;
            if width == standard || needed && check.bits_at(width)?.as_ref() == Some(&bits) {
                widths.push(width);
            }
        }
        return Ok(widths);
    }
    Ok(Vec::new())
}

/// What a decode step of so many rows is like on this device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWidth {
    /// The number of rows.
    pub rows: usize,
    /// The narrowest step whose rows have the same bits; `None` if a row's bits depend on its place.
    pub same_bits_as: Option<usize>,
    /// How long the fastest of some steps took, in seconds.
    pub seconds: f64,
}

/// Steps of 1 to 32 rows of the model in `folder`.
pub fn step_widths(folder: &Path, options: &EngineOptions) -> Result<Vec<StepWidth>> {
    let model = model::load(folder, options.weights()?, &mut |_, _| {})?;
    let mut check = Check::new(model.as_ref())?;
    let mut classes: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut widths = Vec::new();
    for rows in [1, 2, 4, 8, 16, MOST_ROWS] {
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

/// The length of that text.
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

    /// The bits of the probe row in steps of `width` rows, if they are the same at every place: first the even places
    /// hold it and the odd ones strangers, then the other way round.
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
