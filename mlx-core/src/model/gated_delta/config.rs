//! The shape of a gated delta layer, as config.json gives it, and how checkpoints lay out its projections.

use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// How a checkpoint lays out the projections into a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedDeltaProjections {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    Apart,
    /// `in_proj_qkvz` and `in_proj_ba`, each by key head: what belongs to the first one, then to the next.
    ByKeyHead,
}

/// The shape of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    /// Heads of queries and keys; divides the value heads.
    pub num_key_heads: usize,
    /// Heads of values, each with a memory.
    pub num_value_heads: usize,
    /// Dimensions of a query or key.
    pub key_head_dim: usize,
    /// Dimensions of a value.
    pub value_head_dim: usize,
    /// The rows that the convolution sees, the newest included; at least 2.
    pub taps: usize,
    /// How the projections are laid out.
    pub projections: GatedDeltaProjections,
}

impl GatedDeltaConfig {
    /// The width of queries, keys and values, which are convolved.
    pub(in crate::model) fn conv_width(&self) -> usize {
        2 * self.num_key_heads * self.key_head_dim + self.value_width()
    }

    /// The width of values, and of their gates.
    pub(in crate::model) fn value_width(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Bytes of the state of a layer, with activations of `size` bytes.
    pub(in crate::model) fn state_bytes(&self, size: usize) -> usize {
        (self.taps - 1) * self.conv_width() * size + 4 * self.value_width() * self.key_head_dim
    }

    /// Bytes of a row of a prompt on its way through the layer: copies of what is convolved, of queries, keys and values for each
    /// value head, and of its relations to the other rows of a block.
    pub(in crate::model) fn bytes_per_row(&self) -> usize {
        let for_value_heads = self.num_value_heads * (self.key_head_dim + self.value_head_dim);
        4 * (5 * self.conv_width() + 6 * for_value_heads + 8 * self.num_value_heads * super::rule::BLOCK)
    }

    /// One projection to queries, keys, values, gates, corrections and decays, in this order.
    pub(super) fn load_input(&self, weights: &mut Weights, name: &str, hidden: usize) -> Result<Linear> {
        let (values, heads) = (self.value_width(), self.num_value_heads);
        if self.projections == GatedDeltaProjections::Apart {
            let names = ["qkv", "z", "b", "a"].map(|part| format!("{name}.in_proj_{part}"));
            let widths = [self.conv_width(), values, heads, heads];
            let parts: Vec<Part> =
                names.iter().zip(widths).map(|(name, outputs)| Part { name, outputs }).collect();
            return Linear::load(weights, &parts, hidden, false);
        }
        let names = ["qkvz", "ba"].map(|part| format!("{name}.in_proj_{part}"));
        let group = heads / self.num_key_heads;
        let (key, value) = (self.key_head_dim, group * self.value_head_dim);
        let wide = Part { name: &names[0], outputs: self.conv_width() + values };
        let narrow = Part { name: &names[1], outputs: 2 * heads };
        let parts = [
            (wide, Some(self.by_part(&[key, key, value, value]))),
            (narrow, Some(self.by_part(&[group, group]))),
        ];
        Linear::load_in_order(weights, parts.into(), hidden, false)
    }

    /// Where the rows of one part after the other are, if a checkpoint has parts of these widths for each key head.
    fn by_part(&self, widths: &[usize]) -> Vec<i32> {
        let all: usize = widths.iter().sum();
        let mut order = Vec::with_capacity(all * self.num_key_heads);
        let mut start = 0;
        for width in widths {
            for head in 0..self.num_key_heads {
                let first = head * all + start;
                order.extend((first..first + width).map(|row| row as i32));
            }
            start += width;
        }
        order
    }
}
