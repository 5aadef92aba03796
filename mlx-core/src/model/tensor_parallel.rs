//! One of several equal parts of every layer (Shoeybi et al., 2019, arXiv:1909.08053): some heads of attention, some of the numbers between
//! the projections of feed-forward blocks and experts. What the last projection of each gives is added up among the machines.

use super::attention::{AttentionConfig, OutputGate, Projections, QkNormScope};
use super::config::{DecoderConfig, LayerConfig};
use super::feed_forward::FeedForwardInput;
use super::mixer::MixerKind;
use super::moe::{ExpertTensors, MoeConfig};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// Of a matrix `[..., output, input]`, counted from 1 for the last one.
const OUTPUTS: usize = 2;
const INPUTS: usize = 1;

impl DecoderConfig {
    /// The decoder of one of `ranks` machines.
    pub(crate) fn of_rank(&self, family: &str, ranks: usize) -> Result<Self> {
        let refused = |why: String| {
            let message = format!("cannot be tensor for {family} on {ranks} machines: {why}; use pipeline");
            Err(Error::option("parallel", message))
        };
        let is_known = |layer: &&LayerConfig| matches!(layer.mixer, MixerKind::Attention | MixerKind::None);
        if !self.layers.iter().all(|layer| is_known(&layer)) {
            return refused("only layers of plain attention are shared out".into());
        }
        let mut config = self.clone();
        let mut uneven = None;
        let mut share = |name: &'static str, number: &mut usize| {
            if !number.is_multiple_of(ranks) && uneven.is_none() {
                uneven = Some((name, *number));
            }
            *number /= ranks;
        };
        let own = config.layers.iter_mut().filter_map(|layer| layer.attention.as_deref_mut());
        for attention in own.chain([&mut config.attention]) {
            share("num_key_value_heads", &mut attention.num_kv_heads);
            share("num_attention_heads", &mut attention.num_heads);
        }
        let widths = config.layers.iter_mut().filter_map(|layer| layer.intermediate_size.as_mut());
        for width in widths {
            share("intermediate_size", width);
        }
        let is_dense = |layer: &LayerConfig| layer.feeds_forward && !layer.is_moe;
        let experts = config.experts.as_mut();
        if experts.as_ref().is_none_or(|it| it.beside_dense) || self.layers.iter().any(is_dense) {
            share("intermediate_size", &mut config.feed_forward.intermediate_size);
        }
        if let Some(experts) = experts {
            share("the width of experts", &mut experts.intermediate_size);
            if let Some(shared) = &mut experts.shared {
                share("the width of shared experts", &mut shared.intermediate_size);
            }
        }
        if let Some((name, number)) = uneven {
            return refused(format!("{name} is {number}, which they cannot share out evenly"));
        }
        let own = self.layers.iter().filter_map(|layer| self.attention_of(layer));
        if own.filter_map(|it| it.norm).any(|norm| norm.scope != QkNormScope::Head) {
            return refused("its norms of queries and keys reach over all heads".into());
        }
        if self.experts.as_ref().is_some_and(|it| it.tensors == ExpertTensors::Plain) {
            return refused("its experts have no gates".into());
        }
        Ok(config)
    }

    /// How many sums of hidden states a pass needs.
    pub(crate) fn sums(&self) -> usize {
        let of_experts = |experts: &MoeConfig| {
            1 + usize::from(experts.shared.is_some()) + usize::from(experts.beside_dense)
        };
        let inner = |layer: &LayerConfig| match &self.experts {
            _ if !layer.feeds_forward => 0,
            Some(experts) if layer.is_moe => of_experts(experts),
            _ => 1,
        };
        self.layers.iter().map(|layer| usize::from(layer.mixer.attends()) + inner(layer)).sum()
    }

    /// Leaves of the tensors of all layers what `rank` of `ranks` machines has. This is the config of the whole model.
    pub(super) fn cut(&self, weights: &mut Weights, rank: usize, ranks: usize) -> Result<()> {
        let mut cutter = Cutter { weights, rank: (rank, ranks) };
        for (index, layer) in self.layers.iter().enumerate() {
            let name = format!("model.layers.{index}");
            if let Some(attention) = self.attention_of(layer) {
                cutter.attention(&format!("{name}.self_attn"), attention)?;
            }
            let inner = format!("{name}.mlp");
            let experts = self.experts.as_ref().filter(|_| layer.is_moe);
            if experts.is_none_or(|it| it.beside_dense) {
                cutter.feed_forward(&inner, self.feed_forward.input)?;
            }
            if let Some(experts) = experts {
                cutter.experts(
                    if experts.beside_dense { &name } else { &inner },
                    experts,
                    self.hidden_size,
                )?;
            }
        }
        Ok(())
    }
}

struct Cutter<'a, 'w> {
    weights: &'a mut Weights<'w>,
    /// This one, and how many there are.
    rank: (usize, usize),
}

impl Cutter<'_, '_> {
    /// Some outputs of a projection, of each of some blocks of them.
    fn outputs(&mut self, name: &str, blocks: &[usize]) -> Result<()> {
        for part in ["weight", "scales", "biases"] {
            self.weights.cut(&format!("{name}.{part}"), OUTPUTS, blocks, self.rank)?;
        }
        self.weights.cut(&format!("{name}.bias"), 1, blocks, self.rank)
    }

    /// Some inputs of a projection. Its bias is added to the sum. Scales come first: how many groups there are says more than how many words.
    fn inputs(&mut self, name: &str) -> Result<()> {
        for part in ["scales", "biases", "weight"] {
            self.weights.cut(&format!("{name}.{part}"), INPUTS, &[1], self.rank)?;
        }
        Ok(())
    }

    fn attention(&mut self, name: &str, config: &AttentionConfig) -> Result<()> {
        for part in ["q_proj", "k_proj", "v_proj"] {
            self.outputs(&format!("{name}.{part}"), &[1])?;
        }
        if config.output_gate == Some(OutputGate::Apart) {
            self.outputs(&format!("{name}.gate_proj"), &[1])?;
        }
        let heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads];
        let blocks: &[usize] = if config.projections == Projections::InOne { &heads } else { &[1] };
        self.outputs(&format!("{name}.qkv_proj"), blocks)?;
        self.weights.cut(&format!("{name}.sinks"), 1, &[1], self.rank)?;
        self.inputs(&format!("{name}.o_proj"))
    }

    fn feed_forward(&mut self, name: &str, input: FeedForwardInput) -> Result<()> {
        match input {
            FeedForwardInput::Gated => self.outputs(&format!("{name}.gate_proj"), &[1])?,
            FeedForwardInput::GatedInOne => self.outputs(&format!("{name}.gate_up_proj"), &[1, 1])?,
            FeedForwardInput::Plain => {}
        }
        self.outputs(&format!("{name}.up_proj"), &[1])?;
        self.inputs(&format!("{name}.down_proj"))
    }

    fn experts(&mut self, name: &str, config: &MoeConfig, hidden: usize) -> Result<()> {
        if let Some(shared) = config.shared {
            self.feed_forward(&format!("{name}.{}", shared.name), shared.input)?;
        }
        // As mlx-lm writes them, all experts in one stack.
        for place in ["switch_mlp", "experts.switch_glu", "experts"] {
            self.outputs(&format!("{name}.{place}.gate_proj"), &[1])?;
            self.outputs(&format!("{name}.{place}.up_proj"), &[1])?;
            self.last_of_experts(&format!("{name}.{place}.down_proj"), ".bias")?;
        }
        let (inner, width) =
            (config.intermediate_size, config.latent.map_or(hidden, |latent| latent.moe_latent_size));
        match config.tensors {
            ExpertTensors::Each([gate, up, down]) => {
                for expert in 0..config.num_experts {
                    self.outputs(&format!("{name}.experts.{expert}.{gate}"), &[1])?;
                    self.outputs(&format!("{name}.experts.{expert}.{up}"), &[1])?;
                    self.inputs(&format!("{name}.experts.{expert}.{down}"))?;
                }
                self.in_one(&format!("{name}.experts.gate_up_proj"), &format!("{name}.experts.down_proj"))
            }
            ExpertTensors::InOne([first, last]) => {
                self.in_one(&format!("{name}.{first}"), &format!("{name}.{last}"))
            }
            ExpertTensors::Transposed => {
                let (first, last) =
                    (format!("{name}.experts.gate_up_proj"), format!("{name}.experts.down_proj"));
                let has = |name: &str, [outputs, inputs]: [usize; 2]| {
                    self.weights.shape(name) == Some(&[config.num_experts, outputs, inputs])
                };
                if has(&first, [2 * inner, width]) && has(&last, [width, inner]) {
                    return self.in_one(&first, &last);
                }
                self.weights.cut(&first, 1, &[1, 1], self.rank)?;
                self.weights.cut(&last, 2, &[1], self.rank)
            }
            ExpertTensors::Interleaved => self.interleaved(&format!("{name}.experts")),
            ExpertTensors::Plain => Ok(()),
        }
    }

    /// Stacks `[experts, output, input]`, gate above up.
    fn in_one(&mut self, first: &str, last: &str) -> Result<()> {
        self.weights.cut(first, OUTPUTS, &[1, 1], self.rank)?;
        self.weights.cut(last, INPUTS, &[1], self.rank)
    }

    /// gpt-oss, as it was published: outputs alternate between gate and up.
    fn interleaved(&mut self, name: &str) -> Result<()> {
        let (first, last) = (format!("{name}.gate_up_proj"), format!("{name}.down_proj"));
        for (end, axis) in [("", 1), ("_bias", 1), ("_blocks", 3), ("_scales", 2)] {
            self.weights.cut(&format!("{first}{end}"), axis, &[1], self.rank)?;
        }
        for (end, axis) in [("", 2), ("_scales", 1), ("_blocks", 2)] {
            self.weights.cut(&format!("{last}{end}"), axis, &[1], self.rank)?;
        }
        self.last_of_experts(&last, "_bias")
    }

    /// The last projection of experts, whose biases are a part of what is added up: rank 0 has them.
    fn last_of_experts(&mut self, name: &str, bias: &str) -> Result<()> {
        self.inputs(name)?;
        if self.rank.0 > 0 {
            self.weights.skip(&format!("{name}{bias}"));
        }
        Ok(())
    }
}
