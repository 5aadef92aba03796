//! Tensor parallelism (Shoeybi et al., 2019, arXiv:1909.08053). Each machine has a shard of every layer: some attention heads, and some of
//! the values between the projections of feed-forward blocks and experts. The outputs of the last projections are summed over machines.

mod mixers;
mod rank;

use super::attention::{AttentionConfig, OutputGate, Projections, QkNormScope};
use super::attention_beside_mamba2::BesideMamba2Config;
use super::config::{DecoderConfig, LayerConfig};
use super::feed_forward::FeedForwardInput;
use super::mamba2::GatedNorm;
use super::mixer::MixerKind;
use super::moe::{ExpertTensors, MoeConfig};
use crate::adapter::Side;
use crate::error::{Error, Result};
use crate::quantization::MATRIX_PARTS;
use crate::weights::{AxisSelection, Weights};
use rank::Rank;

/// Axes of a matrix `[..., output, input]`, counted from the end; the last one is 1.
const OUTPUTS: usize = 2;
const INPUTS: usize = 1;

impl DecoderConfig {
    /// Returns the decoder of one of `ranks` machines.
    pub(crate) fn for_rank(&self, family: &str, ranks: usize) -> Result<Self> {
        let mut config = self.clone();
        let refusal = self.unsupported_reason().map(str::to_owned).or_else(|| {
            let (name, number) = config.shard_sizes(ranks)?;
            Some(format!("{name} is {number}, which does not divide evenly"))
        });
        match refusal {
            None => Ok(config),
            Some(why) => {
                let message =
                    format!("cannot be tensor for {family} on {ranks} machines: {why}; use pipeline");
                Err(Error::option("parallel", message))
            }
        }
    }

    /// Returns the reason that the model cannot be sharded on any number of machines, if there is one.
    fn unsupported_reason(&self) -> Option<&'static str> {
        let gated = |layer: &LayerConfig| {
            self.attention_of(layer).is_some_and(|it| matches!(it.output_gate, Some(OutputGate::Heads(_))))
        };
        if self.layers.iter().any(gated) {
            return Some("the gates of its heads are not sharded");
        }
        let mut norms = self.layers.iter().filter_map(|layer| self.attention_of(layer)?.norm);
        norms
            .any(|it| it.scope == QkNormScope::Width && !it.norm.kind.is_rms())
            .then_some("its norms of queries and keys need the mean of all heads")
    }

    /// Changes this to the config of one of `ranks` machines. Returns the first number that does not divide evenly, and its name.
    fn shard_sizes(&mut self, ranks: usize) -> Option<(&'static str, usize)> {
        let mut uneven = None;
        let mut note = |name: &'static str, number: &mut usize, share: Option<usize>| match share {
            Some(share) => *number = share,
            None => uneven = uneven.or(Some((name, *number))),
        };
        let attends = self.layers.iter().any(|layer| layer.mixer.attends() && layer.attention.is_none());
        let own = self.layers.iter_mut().filter(|layer| layer.mixer.attends());
        let own = own.filter_map(|layer| layer.attention.as_deref_mut());
        for attention in own.chain(attends.then_some(&mut self.attention)) {
            let (keys, queries) = (attention.num_kv_heads, attention.num_heads);
            note("num_key_value_heads", &mut attention.num_kv_heads, rank::key_heads(keys, ranks));
            note("num_attention_heads", &mut attention.num_heads, rank::divide_evenly(queries, ranks));
        }
        for layer in &mut self.layers {
            match &mut layer.mixer {
                MixerKind::GatedDelta(delta) => {
                    let (keys, values) = (delta.num_key_heads, delta.num_value_heads);
                    note("linear_num_key_heads", &mut delta.num_key_heads, rank::key_heads(keys, ranks));
                    let own = rank::divide_evenly(values, ranks);
                    note("linear_num_value_heads", &mut delta.num_value_heads, own);
                }
                MixerKind::KimiDelta(delta) => {
                    let own = rank::divide_evenly(delta.num_heads, ranks);
                    note("the heads of Kimi's delta rule", &mut delta.num_heads, own);
                }
                MixerKind::ShortConv(conv) => {
                    let own = rank::divide_evenly(conv.channels, ranks);
                    note("the channels of short convolutions", &mut conv.channels, own);
                }
                MixerKind::Latent(latent) => {
                    let own = rank::divide_evenly(latent.num_heads, ranks);
                    note("num_attention_heads", &mut latent.num_heads, own);
                }
                MixerKind::Mamba2(mamba) | MixerKind::BesideMamba2(BesideMamba2Config { mamba, .. }) => {
                    let (groups, heads) = (mamba.n_groups, mamba.num_heads);
                    note("the groups of Mamba-2", &mut mamba.n_groups, rank::key_heads(groups, ranks));
                    note("the heads of Mamba-2", &mut mamba.num_heads, rank::divide_evenly(heads, ranks));
                    mamba.group_ranks = (ranks / groups.max(1)).max(1);
                }
                _ => {}
            }
        }
        let mut share = |name: &'static str, number: &mut usize| {
            let own = rank::divide_evenly(*number, ranks);
            note(name, number, own);
        };
        let widths = self.layers.iter_mut().filter_map(|layer| layer.intermediate_size.as_mut());
        widths.for_each(|width| share("intermediate_size", width));
        let is_dense = |layer: &LayerConfig| layer.feeds_forward && !layer.is_moe;
        let experts = self.experts.as_mut();
        if experts.as_ref().is_some_and(|it| it.beside_dense) || self.layers.iter().any(is_dense) {
            share("intermediate_size", &mut self.feed_forward.intermediate_size);
        }
        if let Some(experts) = experts {
            share("the width of experts", &mut experts.intermediate_size);
            if let Some(shared) = &mut experts.shared {
                share("the width of shared experts", &mut shared.intermediate_size);
            }
        }
        uneven
    }

    /// Returns the number of sums of hidden states in a pass, and the numbers of a row in all of them.
    pub(crate) fn sums(&self) -> (usize, usize) {
        let hidden = self.hidden_size;
        let of_experts = |experts: &MoeConfig| {
            let whole = usize::from(experts.shared.is_some()) + usize::from(experts.beside_dense);
            (1 + whole, experts.latent.map_or(hidden, |latent| latent.moe_latent_size) + whole * hidden)
        };
        let inner = |layer: &LayerConfig| match &self.experts {
            _ if !layer.feeds_forward => (0, 0),
            Some(experts) if layer.is_moe => of_experts(experts),
            _ => (1, hidden),
        };
        let mixer = |layer: &LayerConfig| match layer.mixer {
            MixerKind::None => 0,
            MixerKind::BesideMamba2(_) => 2,
            _ => 1,
        };
        self.layers.iter().fold((0, 0), |(sums, numbers), layer| {
            let (mixer, inner) = (mixer(layer), inner(layer));
            (sums + mixer + inner.0, numbers + mixer * hidden + inner.1)
        })
    }

    /// Returns the number of sums of one or two numbers per row in a pass of `ranks` machines, for norms over heads of several machines.
    pub(crate) fn norm_sums(&self, ranks: usize) -> usize {
        let norms = self.layers.iter().filter_map(|layer| self.attention_of(layer)?.norm);
        let gated = self.layers.iter().filter_map(|layer| layer.mixer.mamba2());
        let shared = gated.filter(|mamba| mamba.norm != GatedNorm::None && mamba.n_groups < ranks);
        norms.filter(|it| it.scope == QkNormScope::Width).count() + shared.count()
    }

    /// Cuts the tensors of all layers to the shard of `rank` of `ranks` machines. `self` is the config of the whole model.
    pub(super) fn cut(&self, weights: &mut Weights, rank: usize, ranks: usize) -> Result<()> {
        let mut cutter = Sharder { weights, rank: Rank { rank, ranks } };
        for (index, layer) in self.layers.iter().enumerate() {
            let name = format!("model.layers.{index}");
            if let Some(attention) = self.attention_of(layer) {
                cutter.attention(&format!("{name}.self_attn"), attention)?;
            }
            match &layer.mixer {
                MixerKind::GatedDelta(delta) => cutter.gated_delta(&format!("{name}.linear_attn"), delta)?,
                MixerKind::KimiDelta(delta) => cutter.kimi_delta(&format!("{name}.self_attn"), delta)?,
                MixerKind::ShortConv(_) => cutter.short_conv(&format!("{name}.conv"))?,
                MixerKind::Latent(latent) => cutter.latent(&format!("{name}.self_attn"), latent)?,
                MixerKind::Mamba2(mamba) | MixerKind::BesideMamba2(BesideMamba2Config { mamba, .. }) => {
                    cutter.mamba2(&format!("{name}.mamba"), mamba)?;
                }
                _ => {}
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

struct Sharder<'a, 'w> {
    weights: &'a mut Weights<'w>,
    rank: Rank,
}

impl Sharder<'_, '_> {
    /// Cuts a projection to some of its outputs.
    fn outputs(&mut self, name: &str, places: &AxisSelection) -> Result<()> {
        for part in MATRIX_PARTS {
            self.weights.cut(&format!("{name}.{part}"), OUTPUTS, places)?;
        }
        self.weights.cut_change(name, Side::Outputs, places)?;
        self.weights.cut(&format!("{name}.bias"), 1, places)
    }

    /// Cuts a projection to some of its inputs. Its bias is added to the sum. Scales come first: if they do not divide evenly, their
    /// error is clearer than that of the packed words.
    fn inputs(&mut self, name: &str) -> Result<()> {
        let places = self.rank.equal_shards(1);
        if self.weights.changes_inputs(name) {
            let message = format!("cannot be tensor: {name} rotates or reorders its inputs; use pipeline");
            return Err(Error::option("parallel", message));
        }
        for part in ["scales", "biases", "weight"] {
            self.weights.cut(&format!("{name}.{part}"), INPUTS, &places)?;
        }
        self.weights.cut_change(name, Side::Inputs, &places)
    }

    fn attention(&mut self, name: &str, config: &AttentionConfig) -> Result<()> {
        let (rank, size) = (self.rank, config.head_dim);
        let (queries, keys) = ((config.num_heads, size), (config.num_kv_heads, size));
        // The rows of an output gate, if `q_proj` has them, are next to those of their query head.
        self.outputs(&format!("{name}.q_proj"), &rank.heads(&[(config.num_heads, 1)]))?;
        self.outputs(&format!("{name}.k_proj"), &rank.heads(&[keys]))?;
        self.outputs(&format!("{name}.v_proj"), &rank.heads(&[keys]))?;
        if config.output_gate == Some(OutputGate::Apart) {
            self.outputs(&format!("{name}.gate_proj"), &rank.heads(&[queries]))?;
        }
        let in_one = match config.projections {
            Projections::ByKeyHead => {
                let group = config.num_heads / config.num_kv_heads;
                rank.by_key_head(config.num_kv_heads, &[(group, size), (1, size), (1, size)])
            }
            Projections::InOne | Projections::Apart => rank.heads(&[queries, keys, keys]),
        };
        self.outputs(&format!("{name}.qkv_proj"), &in_one)?;
        self.weights.cut(&format!("{name}.sinks"), 1, &rank.heads(&[(config.num_heads, 1)]))?;
        if let Some(norm) = config.norm {
            self.head_norms(&format!("{name}.q_norm"), norm.scope, config.num_heads)?;
            self.head_norms(&format!("{name}.k_norm"), norm.scope, config.num_kv_heads)?;
        }
        self.inputs(&format!("{name}.o_proj"))
    }

    /// Cuts norms of `count` heads to the weights of this machine's heads.
    fn head_norms(&mut self, name: &str, scope: QkNormScope, count: usize) -> Result<()> {
        let places = self.rank.heads(&[(count, 1)]);
        match scope {
            QkNormScope::Head => Ok(()),
            QkNormScope::HeadOwnWeights => self.weights.cut(&format!("{name}.weight"), 2, &places),
            QkNormScope::Width => self.weights.cut(&format!("{name}.weight"), 1, &places),
            QkNormScope::HeadOwnTensors => {
                let (own, prefix) =
                    (self.rank.head_range(count), self.weights.file_name_of(&format!("{name}.norms.")));
                let of_head = |tensor: &str| tensor.strip_prefix(&prefix)?.split('.').next()?.parse().ok();
                self.weights.skip_all(|tensor| of_head(tensor).is_some_and(|head| !own.contains(&head)));
                let norm = |head: usize| format!("{name}.norms.{head}.weight");
                for (place, head) in own.enumerate() {
                    if !self.weights.has(&norm(head)) {
                        break;
                    }
                    self.weights.rename_tensor(&norm(head), &norm(place));
                }
                Ok(())
            }
        }
    }

    fn feed_forward(&mut self, name: &str, input: FeedForwardInput) -> Result<()> {
        match input {
            FeedForwardInput::Gated => {
                self.outputs(&format!("{name}.gate_proj"), &self.rank.equal_shards(1))?;
            }
            FeedForwardInput::GatedInOne => {
                self.outputs(&format!("{name}.gate_up_proj"), &self.rank.equal_shards(2))?;
            }
            FeedForwardInput::Plain => {}
        }
        self.outputs(&format!("{name}.up_proj"), &self.rank.equal_shards(1))?;
        self.inputs(&format!("{name}.down_proj"))
    }

    fn experts(&mut self, name: &str, config: &MoeConfig, hidden: usize) -> Result<()> {
        if let Some(shared) = config.shared {
            self.feed_forward(&format!("{name}.{}", shared.name), shared.input)?;
        }
        // mlx-lm's layout: all experts in one stack.
        for place in ["switch_mlp", "experts.switch_glu", "experts"] {
            self.outputs(&format!("{name}.{place}.gate_proj"), &self.rank.equal_shards(1))?;
            self.outputs(&format!("{name}.{place}.up_proj"), &self.rank.equal_shards(1))?;
            self.last_of_experts(&format!("{name}.{place}.down_proj"), ".bias")?;
        }
        let (inner, width) =
            (config.intermediate_size, config.latent.map_or(hidden, |latent| latent.moe_latent_size));
        match config.tensors {
            ExpertTensors::Each(names) => self.experts_apart(name, names, config.num_experts)?,
            // Quantization tools write such experts apart.
            ExpertTensors::InOne(_) | ExpertTensors::Transposed | ExpertTensors::Plain => {
                self.experts_apart(name, ["gate_proj", "up_proj", "down_proj"], config.num_experts)?;
            }
            ExpertTensors::Interleaved => {}
        }
        match config.tensors {
            ExpertTensors::Each(_) => {
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
                        || self.weights.has(&format!("{name}.scales"))
                };
                if has(&first, [2 * inner, width]) && has(&last, [width, inner]) {
                    return self.in_one(&first, &last);
                }
                self.weights.cut(&first, 1, &self.rank.equal_shards(2))?;
                self.weights.cut(&last, 2, &self.rank.equal_shards(1))
            }
            ExpertTensors::Interleaved => self.interleaved(&format!("{name}.experts")),
            ExpertTensors::Plain => self.plain(name),
        }
    }

    /// Cuts the matrices of single experts, if present.
    fn experts_apart(&mut self, name: &str, [gate, up, down]: [&str; 3], count: usize) -> Result<()> {
        for expert in 0..count {
            self.outputs(&format!("{name}.experts.{expert}.{gate}"), &self.rank.equal_shards(1))?;
            self.outputs(&format!("{name}.experts.{expert}.{up}"), &self.rank.equal_shards(1))?;
            self.inputs(&format!("{name}.experts.{expert}.{down}"))?;
        }
        Ok(())
    }

    /// Cuts stacks `[experts, output, input]`, gate above up.
    fn in_one(&mut self, first: &str, last: &str) -> Result<()> {
        // Packed stacks of other tools.
        self.outputs(first, &self.rank.equal_shards(2))?;
        self.inputs(last)?;
        self.weights.cut(first, OUTPUTS, &self.rank.equal_shards(2))?;
        self.weights.cut(last, INPUTS, &self.rank.equal_shards(1))
    }

    /// Cuts stacks of experts without gates.
    fn plain(&mut self, name: &str) -> Result<()> {
        let own = self.rank.equal_shards(1);
        // mlx-lm's layout.
        self.outputs(&format!("{name}.switch_mlp.fc1"), &own)?;
        self.inputs(&format!("{name}.switch_mlp.fc2"))?;
        self.weights.cut(&format!("{name}.experts.up_proj"), OUTPUTS, &own)?;
        self.weights.cut(&format!("{name}.experts.down_proj"), INPUTS, &own)
    }

    /// Cuts the published layout of gpt-oss, with alternating gate and up outputs.
    fn interleaved(&mut self, name: &str) -> Result<()> {
        let (first, last) = (format!("{name}.gate_up_proj"), format!("{name}.down_proj"));
        for (end, axis) in [("", 1), ("_bias", 1), ("_blocks", 3), ("_scales", 2)] {
            self.weights.cut(&format!("{first}{end}"), axis, &self.rank.equal_shards(1))?;
        }
        for (end, axis) in [("", 2), ("_scales", 1), ("_blocks", 2)] {
            self.weights.cut(&format!("{last}{end}"), axis, &self.rank.equal_shards(1))?;
        }
        self.last_of_experts(&last, "_bias")
    }

    /// Cuts the last projection of experts. Only rank 0 has its biases, because they are part of the sum.
    fn last_of_experts(&mut self, name: &str, bias: &str) -> Result<()> {
        self.inputs(name)?;
        if self.rank.rank > 0 {
            self.weights.skip(&format!("{name}{bias}"));
        }
        Ok(())
    }
}
