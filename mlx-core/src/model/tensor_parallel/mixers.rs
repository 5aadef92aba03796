//! The shards of mixers other than plain attention: their tensors, cut by heads.

use super::{OUTPUTS, Sharder};
use crate::error::Result;
use crate::model::gated_delta::{GatedDeltaConfig, GatedDeltaProjections};
use crate::model::kimi_delta::KimiDeltaConfig;
use crate::model::latent_attention::LatentConfig;
use crate::model::mamba2::Mamba2Config;
use crate::quantization::MATRIX_PARTS;

/// The axis of heads in a stack of matrices `[heads, output, input]`, counted from the end.
const HEADS: usize = OUTPUTS + 1;

/// The axis of channels in the taps of a convolution, `[channels, 1, taps]` or `[channels, taps, 1]`, counted from the end.
const CHANNELS: usize = 3;

impl Sharder<'_, '_> {
    pub(super) fn gated_delta(&mut self, name: &str, config: &GatedDeltaConfig) -> Result<()> {
        let (rank, [key, value]) = (self.rank, [config.key_head_dim, config.value_head_dim]);
        let (keys, values) = ((config.num_key_heads, key), (config.num_value_heads, value));
        let (convolved, per_head) =
            (rank.heads(&[keys, keys, values]), rank.heads(&[(config.num_value_heads, 1)]));
        match config.projections {
            GatedDeltaProjections::Apart => {
                self.outputs(&format!("{name}.in_proj_qkv"), &convolved)?;
                self.outputs(&format!("{name}.in_proj_z"), &rank.heads(&[values]))?;
                self.outputs(&format!("{name}.in_proj_b"), &per_head)?;
                self.outputs(&format!("{name}.in_proj_a"), &per_head)?;
            }
            GatedDeltaProjections::ByKeyHead => {
                let (count, group) = (config.num_key_heads, config.num_value_heads / config.num_key_heads);
                let wide = [(1, key), (1, key), (group, value), (group, value)];
                self.outputs(&format!("{name}.in_proj_qkvz"), &rank.by_key_head(count, &wide))?;
                let narrow = [(group, 1), (group, 1)];
                self.outputs(&format!("{name}.in_proj_ba"), &rank.by_key_head(count, &narrow))?;
            }
        }
        self.weights.cut(&format!("{name}.conv1d.weight"), CHANNELS, &convolved)?;
        self.weights.cut(&format!("{name}.A_log"), 1, &per_head)?;
        self.weights.cut(&format!("{name}.dt_bias"), 1, &per_head)?;
        self.inputs(&format!("{name}.out_proj"))
    }

    /// Cuts Kimi's delta rule by heads. The first projections of low-rank decays and gates stay whole.
    pub(super) fn kimi_delta(&mut self, name: &str, config: &KimiDeltaConfig) -> Result<()> {
        let heads = self.rank.heads(&[(config.num_heads, 1)]);
        for part in ["q", "k", "v", "b", "f", "g", "f_b", "g_b"] {
            self.outputs(&format!("{name}.{part}_proj"), &heads)?;
        }
        for part in ["q", "k", "v"] {
            for conv in ["conv1d", "conv.conv"] {
                self.weights.cut(&format!("{name}.{part}_{conv}.weight"), CHANNELS, &heads)?;
            }
        }
        for part in ["A_log", "dt_bias"] {
            // All axes before that of heads are 1.
            let tensor = format!("{name}.{part}");
            let shape = self.weights.shape(&tensor).unwrap_or_default();
            let before = shape.iter().take_while(|length| **length == 1).count();
            let axis = shape.len() - before;
            self.weights.cut(&tensor, axis, &heads)?;
        }
        self.inputs(&format!("{name}.o_proj"))
    }

    /// Cuts a short convolution by channels.
    pub(super) fn short_conv(&mut self, name: &str) -> Result<()> {
        self.outputs(&format!("{name}.in_proj"), &self.rank.equal_shards(3))?;
        let channels = self.rank.equal_shards(1);
        self.weights.cut(&format!("{name}.conv.weight"), CHANNELS, &channels)?;
        self.weights.cut(&format!("{name}.conv.bias"), 1, &channels)?;
        self.inputs(&format!("{name}.out_proj"))
    }

    /// Cuts latent attention. Every machine has the whole latents, of all positions.
    pub(super) fn latent(&mut self, name: &str, config: &LatentConfig) -> Result<()> {
        let (rank, heads) = (self.rank, config.num_heads);
        let of_size = |size: usize| rank.heads(&[(heads, size)]);
        for query in ["q_proj", "q_b_proj"] {
            self.outputs(&format!("{name}.{query}"), &of_size(config.query_width()))?;
        }
        self.outputs(&format!("{name}.kv_b_proj"), &of_size(config.qk_nope_head_dim + config.v_head_dim))?;
        // mlx-lm's layout.
        for stack in ["embed_q", "unembed_out"] {
            for part in MATRIX_PARTS {
                self.weights.cut(&format!("{name}.{stack}.{part}"), HEADS, &of_size(1))?;
            }
        }
        self.outputs(&format!("{name}.g_proj"), &of_size(1))?;
        self.inputs(&format!("{name}.o_proj"))?;
        self.inputs(&format!("{name}.dense"))
    }

    pub(super) fn mamba2(&mut self, name: &str, config: &Mamba2Config) -> Result<()> {
        let rank = self.rank;
        let (heads, groups) = ((config.num_heads, config.head_dim), (config.n_groups, config.state_size));
        let per_head = rank.heads(&[(config.num_heads, 1)]);
        let projected = rank.heads(&[heads, heads, groups, groups, (config.num_heads, 1)]);
        let convolved = rank.heads(&[heads, groups, groups]);
        self.outputs(&format!("{name}.in_proj"), &projected)?;
        self.weights.cut(&format!("{name}.conv1d.weight"), CHANNELS, &convolved)?;
        self.weights.cut(&format!("{name}.conv1d.bias"), 1, &convolved)?;
        for part in ["A_log", "D", "dt_bias"] {
            self.weights.cut(&format!("{name}.{part}"), 1, &per_head)?;
        }
        self.weights.cut(&format!("{name}.norm.weight"), 1, &rank.heads(&[heads]))?;
        self.inputs(&format!("{name}.out_proj"))
    }
}
