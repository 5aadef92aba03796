//! The weights of all experts of a layer, side by side, and the product of a row with those that were chosen for it. Invariant:
//! how checkpoints lay experts out is known here and nowhere else.

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate, gather_mm, stack};

use super::moe::ExpertsConfig;
use crate::error::Result;
use crate::weights::Weights;

/// How a checkpoint calls the tensors of its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensors {
    /// One by one in `experts.{index}`, with these names of gate, up and down; or as mlx-lm writes them, all in one in `switch_mlp`.
    Each([&'static str; 3]),
    /// gpt-oss: all in `experts`, transposed, gate and up by turns; or as mlx-lm writes them, apart.
    Interleaved,
}

/// A projection of every expert.
pub(super) struct ExpertLinear {
    /// `[experts, input, output]`, perhaps a transposed view.
    weight: Array,
    /// `[experts, output]`
    bias: Option<Array>,
}

impl ExpertLinear {
    /// From `[experts, output, input]`.
    fn new(weight: &Array, bias: Option<Array>) -> Result<Self> {
        Ok(Self { weight: weight.swap_axes(1, 2)?, bias })
    }

    /// `[.., 1, input]` through the experts `chosen`, with whose shape that of the rows must agree but for axes of 1:
    /// `[.., 1, output]`. One product for each row and expert; `sorted` says that experts rise.
    pub(super) fn forward(&self, input: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        let product = gather_mm(input, &self.weight, None, chosen, sorted)?;
        Ok(match &self.bias {
            None => product,
            Some(bias) => add(product, bias.take_axis(chosen, 0)?.expand_dims(-2)?)?,
        })
    }
}

impl ExpertTensors {
    /// Takes the experts under `{name}.`: gate above up, and down.
    pub(super) fn load(
        self,
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &ExpertsConfig,
    ) -> Result<(ExpertLinear, ExpertLinear)> {
        let mut taker = Taker { weights, name, hidden, config };
        match self {
            Self::Each(_) if taker.weights.has(&format!("{name}.switch_mlp.gate_proj.weight")) => {
                taker.stacked("switch_mlp")
            }
            Self::Each(_) if taker.weights.has(&format!("{name}.experts.gate_up_proj")) => taker.in_one(),
            Self::Each(names) => taker.one_by_one(names),
            Self::Interleaved if taker.weights.has(&format!("{name}.experts.gate_proj.weight")) => {
                taker.stacked("experts")
            }
            Self::Interleaved => taker.interleaved(),
        }
    }
}

struct Taker<'a, 'w> {
    weights: &'a mut Weights<'w>,
    name: &'a str,
    hidden: usize,
    config: &'a ExpertsConfig,
}

impl Taker<'_, '_> {
    fn take(&mut self, part: &str, shape: &[usize]) -> Result<Array> {
        self.weights.take(&format!("{}.{part}", self.name), shape)
    }

    /// `experts.{index}.{name}.weight` for each expert.
    fn one_by_one(&mut self, [gate, up, down]: [&str; 3]) -> Result<(ExpertLinear, ExpertLinear)> {
        let (inner, hidden) = (self.config.inner, self.hidden);
        let (mut gate_up, mut downs) = (Vec::new(), Vec::new());
        for expert in 0..self.config.count {
            let gate = self.take(&format!("experts.{expert}.{gate}.weight"), &[inner, hidden])?;
            let up = self.take(&format!("experts.{expert}.{up}.weight"), &[inner, hidden])?;
            gate_up.push(joined(&[gate, up], 0)?);
            downs.push(self.take(&format!("experts.{expert}.{down}.weight"), &[hidden, inner])?);
        }
        let stack = |parts: &[Array]| -> Result<Array> {
            let all = stack(parts, 0)?;
            all.eval()?;
            Ok(all)
        };
        Ok((ExpertLinear::new(&stack(&gate_up)?, None)?, ExpertLinear::new(&stack(&downs)?, None)?))
    }

    /// `{place}.gate_proj.weight` and so on, each `[experts, output, input]`.
    fn stacked(&mut self, place: &str) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.count, self.config.inner, self.hidden);
        let gate = self.take(&format!("{place}.gate_proj.weight"), &[count, inner, hidden])?;
        let up = self.take(&format!("{place}.up_proj.weight"), &[count, inner, hidden])?;
        let down = self.take(&format!("{place}.down_proj.weight"), &[count, hidden, inner])?;
        let (mut both, mut after) = (None, None);
        if self.config.bias {
            let gate = self.take(&format!("{place}.gate_proj.bias"), &[count, inner])?;
            let up = self.take(&format!("{place}.up_proj.bias"), &[count, inner])?;
            both = Some(joined(&[gate, up], 1)?);
            after = Some(self.take(&format!("{place}.down_proj.bias"), &[count, hidden])?);
        }
        Ok((ExpertLinear::new(&joined(&[gate, up], 1)?, both)?, ExpertLinear::new(&down, after)?))
    }

    /// `experts.gate_up_proj` and `experts.down_proj`, each `[experts, output, input]`.
    fn in_one(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.count, self.config.inner, self.hidden);
        let gate_up = self.take("experts.gate_up_proj", &[count, 2 * inner, hidden])?;
        let down = self.take("experts.down_proj", &[count, hidden, inner])?;
        Ok((ExpertLinear::new(&gate_up, None)?, ExpertLinear::new(&down, None)?))
    }

    /// `experts.gate_up_proj` of `[experts, input, output]` whose outputs are gate and up by turns.
    fn interleaved(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.count, self.config.inner, self.hidden);
        let gate_up = self.take("experts.gate_up_proj", &[count, hidden, 2 * inner])?;
        let down = self.take("experts.down_proj", &[count, inner, hidden])?;
        let (mut both, mut after) = (None, None);
        if self.config.bias {
            both = Some(apart(&self.take("experts.gate_up_proj_bias", &[count, 2 * inner])?)?);
            after = Some(self.take("experts.down_proj_bias", &[count, hidden])?);
        }
        let gate_up = ExpertLinear { weight: apart(&gate_up)?, bias: both };
        Ok((gate_up, ExpertLinear { weight: down, bias: after }))
    }
}

/// The parts in one along `axis`, computed.
fn joined(parts: &[Array], axis: i32) -> Result<Array> {
    let joined = concatenate(parts, axis)?;
    joined.eval()?;
    Ok(joined)
}

/// What stood by turns along the last axis, one half after the other.
fn apart(turns: &Array) -> Result<Array> {
    let width = turns.dim(-1);
    let order: Vec<i32> = (0..width).step_by(2).chain((1..width).step_by(2)).collect();
    let apart = turns.take_axis(Array::from_slice(&order, &[width]), -1)?;
    apart.eval()?;
    Ok(apart)
}
