//! The stacked weights of all experts of a layer, and the product of a row with its chosen experts. Invariant: only this file handles the
//! layouts of experts in checkpoints.

use mlx_rs::Array;
use mlx_rs::ops::{add, concatenate};

use super::config::{ExpertTensors, MoeConfig};
use super::expert_stack::{Stack, joined};
use crate::array;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::model::low_rank::LowRank;
use crate::quantization::QuantizedMatrix;
use crate::weights::{LoadedMatrix, Weights};

/// A projection of every expert.
#[derive(Clone)]
pub(super) struct ExpertLinear {
    /// The outputs of the stacks are concatenated. There is more than one only if parts have different quantization schemes.
    stacks: Vec<Stack>,
    /// `[experts, output]`
    bias: Option<Array>,
    /// The change of an adapter.
    low_rank: Option<LowRank>,
}

impl ExpertLinear {
    fn of(stacks: Vec<Stack>, bias: Option<Array>) -> Self {
        Self { stacks, bias, low_rank: None }
    }

    /// Maps `[.., 1, input]` to `[.., 1, output]` through the experts `chosen`. The shapes of rows and `chosen` must be equal except for axes
    /// of 1. There is one product for each row and expert. `sorted` is true if the experts are in ascending order.
    pub(super) fn forward(&self, input: &Array, chosen: &Array, sorted: bool) -> Result<Array> {
        let products = self.stacks.iter().map(|stack| stack.forward(input, chosen, sorted));
        let mut products = products.collect::<Result<Vec<_>>>()?;
        let product = if products.len() == 1 { products.remove(0) } else { concatenate(&products, -1)? };
        let output = match &self.bias {
            None => product,
            Some(bias) => add(product, bias.take_axis(chosen, 0)?.expand_dims(-2)?)?,
        };
        match &self.low_rank {
            None => Ok(output),
            Some(change) => change.added_by_expert(input, output, chosen, sorted),
        }
    }
}

/// The usual names of the matrices of one expert.
const APART: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl ExpertTensors {
    /// Loads the experts under `{name}.`: gate above up, and down.
    pub(super) fn load(
        self,
        weights: &mut Weights,
        name: &str,
        hidden: usize,
        config: &MoeConfig,
    ) -> Result<(ExpertLinear, ExpertLinear)> {
        let (dtype, backend) = (weights.label(), weights.backend());
        let (mut gate_up, mut down) =
            weights.shared(&[name], |weights| self.take(ExpertLoader { weights, name, hidden, config }))?;
        let (count, inner) = (config.num_experts, config.intermediate_size);
        let (first, last): (&[&str], &str) =
            if self == Self::Plain { (&["fc1"], "fc2") } else { (&["gate_proj", "up_proj"], "down_proj") };
        let parts: Vec<_> = first.iter().map(|part| (candidate_names(name, part), inner)).collect();
        gate_up.low_rank = LowRank::take_experts(weights, &parts, count, hidden)?;
        let parts = [(candidate_names(name, last), hidden)];
        down.low_rank = LowRank::take_experts(weights, &parts, count, inner)?;
        if [&gate_up, &down].into_iter().flat_map(|it| &it.stacks).any(|it| matches!(it, Stack::Dense(_))) {
            expect_type_of_floats(dtype, backend)?;
        }
        Ok((gate_up, down))
    }

    fn take(self, mut taker: ExpertLoader) -> Result<(ExpertLinear, ExpertLinear)> {
        let name = taker.name;
        match self {
            Self::Each(_) | Self::InOne(_) | Self::Transposed
                if taker.weights.has(&format!("{name}.switch_mlp.gate_proj.weight")) =>
            {
                taker.stacked("switch_mlp")
            }
            Self::InOne(_) if taker.weights.has(&format!("{name}.experts.switch_glu.gate_proj.weight")) => {
                taker.stacked("experts.switch_glu")
            }
            // mlx-lm's layout of dots1 and gpt-oss.
            Self::Each(_) | Self::Interleaved
                if taker.weights.has(&format!("{name}.experts.gate_proj.weight")) =>
            {
                taker.stacked("experts")
            }
            // Quantization tools write such experts apart.
            Self::InOne(_) | Self::Transposed
                if taker.weights.has(&format!("{name}.experts.0.gate_proj.weight")) =>
            {
                taker.one_by_one(APART)
            }
            Self::InOne(names) => taker.fused(names),
            Self::Plain => taker.plain(),
            Self::Each(_) | Self::Transposed if taker.has_outputs_first() => {
                taker.fused(["experts.gate_up_proj", "experts.down_proj"])
            }
            Self::Transposed => taker.transposed(),
            Self::Each(names) => taker.one_by_one(names),
            Self::Interleaved if taker.weights.has(&format!("{name}.experts.gate_up_proj_blocks")) => {
                taker.in_blocks()
            }
            Self::Interleaved => taker.interleaved(),
        }
    }
}

struct ExpertLoader<'a, 'w> {
    weights: &'a mut Weights<'w>,
    name: &'a str,
    hidden: usize,
    config: &'a MoeConfig,
}

impl ExpertLoader<'_, '_> {
    fn take(&mut self, part: &str, shape: &[usize]) -> Result<Array> {
        self.weights.take(&format!("{}.{part}", self.name), shape)
    }

    fn take_matrix(&mut self, part: &str, shape: &[usize]) -> Result<Array> {
        self.weights.take_matrix(&[(&format!("{}.{part}", self.name), shape)])
    }

    /// Loads `{part}.weight` of parts, each `[experts, output, input]`. Combines their outputs into as few stacks as their schemes allow.
    fn stacks(&mut self, parts: &[&str], shape: [usize; 3]) -> Result<Vec<Stack>> {
        let modules: Vec<_> = parts.iter().map(|part| format!("{}.{part}", self.name)).collect();
        let taken = self.take_alike(&modules, &shape)?;
        Stack::joined(taken.into_iter().map(Stack::of).collect::<Result<_>>()?)
    }

    /// Like [`stacks`](Self::stacks), for one part by its full name. Only names that end with `.weight` can be packed.
    fn whole(&mut self, name: &str, shape: [usize; 3]) -> Result<Vec<Stack>> {
        let is_packed = self.weights.has(&format!("{}.{name}.scales", self.name));
        match name.strip_suffix(".weight") {
            Some(part) => self.stacks(&[part], shape),
            None if is_packed => self.stacks(&[name], shape),
            None => Ok(vec![Stack::dense(&self.take_matrix(name, &shape)?)?]),
        }
    }

    /// Like [`stacks`](Self::stacks), for `experts.{index}.{name}` of all experts, each `shape`.
    fn each(&mut self, names: &[&str], shape: [usize; 2]) -> Result<Vec<Stack>> {
        let (prefix, count) = (self.name, self.config.num_experts);
        let of_all = |names: &[&str]| -> Vec<String> {
            let of_one = |expert| names.iter().map(move |name| format!("{prefix}.experts.{expert}.{name}"));
            (0..count).flat_map(of_one).collect()
        };
        let together = of_all(names);
        if together.iter().all(|one| self.weights.have_same_format(one, &together[0])) {
            return Ok(vec![self.stack_experts(&together, shape)?]);
        }
        let stacks = names.iter().map(|name| self.stack_experts(&of_all(&[name]), shape));
        Stack::joined(stacks.collect::<Result<_>>()?)
    }

    /// Stacks the matrices of all experts. If each has several, they are combined into one.
    fn stack_experts(&mut self, modules: &[String], shape: [usize; 2]) -> Result<Stack> {
        let (mut packed, mut floats) = (Vec::new(), Vec::new());
        for taken in self.take_alike(modules, &shape)? {
            match taken {
                LoadedMatrix::Packed(rows) => packed.push(rows),
                LoadedMatrix::Dense(rows) => floats.push(rows),
            }
        }
        let count = self.config.num_experts;
        match packed.first() {
            None => {
                let rows = array::stacked(&floats.iter().collect::<Vec<_>>())?;
                Stack::dense(&rows.reshape(&[count as i32, -1, rows.dim(-1)])?)
            }
            Some(first) if floats.is_empty() && packed.iter().all(|it| it.has_same_scheme(first)) => {
                let rows = QuantizedMatrix::stack(&packed.iter().collect::<Vec<_>>())?;
                Ok(Stack::QuantizedMatrix(rows.reshape_to_stack(count)?))
            }
            Some(_) => Err(self
                .weights
                .error(&format!("{} and other experts have different quantization schemes", modules[0]))),
        }
    }

    /// Loads modules with a matrix or a stack of this shape. Neighbors that are alike are loaded as one.
    fn take_alike(&mut self, modules: &[String], shape: &[usize]) -> Result<Vec<LoadedMatrix>> {
        let alike: Vec<_> =
            modules.chunk_by(|one, other| self.weights.have_same_format(one, other)).collect();
        let take = |modules: &[String]| {
            let named: Vec<_> = modules.iter().map(|module| (module.as_str(), shape)).collect();
            self.weights.take_modules(&named)
        };
        alike.into_iter().map(take).collect()
    }

    /// Loads `experts.{index}.{name}.weight` of each expert.
    fn one_by_one(&mut self, [gate, up, down]: [&str; 3]) -> Result<(ExpertLinear, ExpertLinear)> {
        let (inner, hidden) = (self.config.intermediate_size, self.hidden);
        let gate_up = self.each(&[gate, up], [inner, hidden])?;
        Ok((ExpertLinear::of(gate_up, None), ExpertLinear::of(self.each(&[down], [hidden, inner])?, None)))
    }

    /// Loads `{place}.gate_proj.weight` and so on, each `[experts, output, input]`.
    fn stacked(&mut self, place: &str) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"].map(|part| format!("{place}.{part}"));
        let gate_up = self.stacks(&[&gate, &up], [count, inner, hidden])?;
        let last = self.stacks(&[&down], [count, hidden, inner])?;
        let (mut both, mut after) = (None, None);
        if self.config.bias {
            let gate = self.take(&format!("{gate}.bias"), &[count, inner])?;
            let up = self.take(&format!("{up}.bias"), &[count, inner])?;
            both = Some(joined(&[gate, up], 1)?);
            after = self.last_bias(&format!("{down}.bias"))?;
        }
        Ok((ExpertLinear::of(gate_up, both), ExpertLinear::of(last, after)))
    }

    /// Loads up and down of experts without gates.
    fn plain(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        let mut part = |stacked: &str, name: &str, [outputs, inputs]: [usize; 2]| {
            let shape = [count, outputs, inputs];
            let (in_one, prefix) = (format!("experts.{name}"), self.name);
            let stacks = match () {
                () if self.weights.has(&format!("{prefix}.{stacked}.weight")) => {
                    self.stacks(&[stacked], shape)
                }
                () if self.weights.has(&format!("{prefix}.{in_one}")) => self.whole(&in_one, shape),
                () => self.each(&[name], [outputs, inputs]),
            };
            stacks.map(|stacks| ExpertLinear::of(stacks, None))
        };
        Ok((
            part("switch_mlp.fc1", "up_proj", [inner, hidden])?,
            part("switch_mlp.fc2", "down_proj", [hidden, inner])?,
        ))
    }

    /// Loads gate above up, and down, each `[experts, output, input]`.
    fn fused(&mut self, [gate_up, down]: [&str; 2]) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        let gate_up = self.whole(gate_up, [count, 2 * inner, hidden])?;
        let down = self.whole(down, [count, hidden, inner])?;
        Ok((ExpertLinear::of(gate_up, None), ExpertLinear::of(down, None)))
    }

    /// Returns true if `experts.gate_up_proj` and `experts.down_proj` are `[experts, output, input]`, as transformers writes tensors that
    /// were published transposed. Both are checked, because one of them may be square.
    fn has_outputs_first(&self) -> bool {
        let (count, inner) = (self.config.num_experts, self.config.intermediate_size);
        let has = |part: &str, shape: [usize; 3]| {
            let name = format!("{}.experts.{part}", self.name);
            self.weights.shape(&name) == Some(&shape) || self.weights.has(&format!("{name}.scales"))
        };
        has("gate_up_proj", [count, 2 * inner, self.hidden]) && has("down_proj", [count, self.hidden, inner])
    }

    /// Loads `experts.gate_up_proj` and `experts.down_proj`, each `[experts, input, output]`.
    fn transposed(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        let gate_up = self.take_matrix("experts.gate_up_proj", &[count, hidden, 2 * inner])?;
        let down = self.take_matrix("experts.down_proj", &[count, inner, hidden])?;
        let dtype = self.weights.dtype();
        let [gate_up, down] = [Stack::transposed(gate_up, dtype)?, Stack::transposed(down, dtype)?];
        Ok((ExpertLinear::of(vec![gate_up], None), ExpertLinear::of(vec![down], None)))
    }

    /// Loads `experts.gate_up_proj`, `[experts, input, output]` with alternating gate and up outputs, and `experts.down_proj`.
    fn interleaved(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        // Each tensor takes gigabytes, so it is dropped as soon as it has been converted.
        let gate_up = self.take_matrix("experts.gate_up_proj", &[count, hidden, 2 * inner])?;
        let dtype = self.weights.dtype();
        let gate_up = Stack::transposed(deinterleave(gate_up)?, dtype)?;
        let down = self.take_matrix("experts.down_proj", &[count, inner, hidden])?;
        let down = Stack::transposed(down, dtype)?;
        let (both, after) = self.interleaved_biases()?;
        Ok((ExpertLinear::of(vec![gate_up], both), ExpertLinear::of(vec![down], after)))
    }

    /// Loads `experts.gate_up_proj_blocks`, `[experts, output, input]` in mxfp4 with alternating gate and up outputs, and `down_proj_blocks`.
    fn in_blocks(&mut self) -> Result<(ExpertLinear, ExpertLinear)> {
        let (count, inner, hidden) = (self.config.num_experts, self.config.intermediate_size, self.hidden);
        let (place, dtype) = (format!("{}.experts", self.name), self.weights.dtype());
        let gate_up =
            self.weights.take_blocks(&format!("{place}.gate_up_proj"), [count, 2 * inner, hidden])?;
        let apart = gate_up.select_rows(&deinterleaved(2 * inner as i32))?.evaluated()?;
        drop(gate_up);
        let down = self.weights.take_blocks(&format!("{place}.down_proj"), [count, hidden, inner])?;
        let kept = self.weights.keeps_packed();
        let stack = |packed: QuantizedMatrix| -> Result<Stack> {
            Ok(if kept { Stack::QuantizedMatrix(packed) } else { Stack::dense(&packed.dequantize(dtype)?)? })
        };
        let (both, after) = self.interleaved_biases()?;
        let gate_up = ExpertLinear::of(vec![stack(apart)?], both);
        Ok((gate_up, ExpertLinear::of(vec![stack(down)?], after)))
    }

    fn interleaved_biases(&mut self) -> Result<(Option<Array>, Option<Array>)> {
        let (count, inner) = (self.config.num_experts, self.config.intermediate_size);
        if !self.config.bias {
            return Ok((None, None));
        }
        let both = deinterleave(self.take("experts.gate_up_proj_bias", &[count, 2 * inner])?)?;
        Ok((Some(both), self.last_bias("experts.down_proj_bias")?))
    }

    /// Loads the biases of the last projection. Only rank 0 has them if the outputs of several machines are summed.
    fn last_bias(&mut self, part: &str) -> Result<Option<Array>> {
        if self.weights.shard().is_some_and(|shard| shard.rank > 0) {
            return Ok(None);
        }
        self.take(part, &[self.config.num_experts, self.hidden]).map(Some)
    }
}

/// Returns mlx-lm's names of a projection of all experts under `name`.
fn candidate_names(name: &str, part: &str) -> Vec<String> {
    ["switch_mlp", "experts.switch_glu", "experts"].map(|place| format!("{name}.{place}.{part}")).to_vec()
}

/// Rejects unquantized experts in a type that the backend does not support.
pub(in crate::model) fn expect_type_of_floats(dtype: &str, backend: Backend) -> Result<()> {
    if dtype == "f32" || backend.half_experts {
        return Ok(());
    }
    let why = "on a CPU, MLX multiplies by experts in f32 only, unless they are quantized and stay packed";
    Err(Error::option("dtype", format!("cannot be {dtype} for this model: {why}")))
}

/// Separates alternating elements along the last axis into two halves.
fn deinterleave(alternating: Array) -> Result<Array> {
    let apart = alternating.take_axis(deinterleaved(alternating.dim(-1)), -1)?;
    apart.eval()?;
    drop(alternating);
    Ok(apart)
}

/// Returns the even indices, then the odd ones.
fn deinterleaved(width: i32) -> Array {
    let order: Vec<i32> = (0..width).step_by(2).chain((1..width).step_by(2)).collect();
    Array::from_slice(&order, &[width])
}
