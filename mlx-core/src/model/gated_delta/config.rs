//! The config of a gated delta layer, and the layouts of its projections in checkpoints.

use crate::error::Result;
use crate::model::linear::{Linear, Part};
use crate::weights::Weights;

/// The layout of the input projections of a gated delta layer in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedDeltaProjections {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    Apart,
    /// `in_proj_qkvz` and `in_proj_ba`. Each has all outputs of the first key head, then those of the next.
    ByKeyHead,
}

/// The shape of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    /// The number of heads of queries and keys. It divides the number of value heads.
    pub num_key_heads: usize,
    /// The number of heads of values, each with a memory.
    pub num_value_heads: usize,
    /// The dimensions of a query or key.
    pub key_head_dim: usize,
    /// The dimensions of a value.
    pub value_head_dim: usize,
    /// The number of rows that the convolution sees, the newest included; at least 2.
    pub taps: usize,
    /// The layout of the projections.
    pub projections: GatedDeltaProjections,
}

impl GatedDeltaConfig {
    /// The width of queries, keys and values, which are the input of the convolution.
    pub(in crate::model) fn conv_width(&self) -> usize {
        2 * self.num_key_heads * self.key_head_dim + self.value_width()
    }

    /// The width of values, and of their gates.
    pub(in crate::model) fn value_width(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Returns the bytes of the state of a layer, with activations of `size` bytes.
    pub(in crate::model) fn state_bytes(&self, size: usize) -> usize {
        (self.taps - 1) * self.conv_width() * size + 4 * self.value_width() * self.key_head_dim
    }

    /// Returns the temporary bytes of a prompt row in the layer: copies of the convolution's input, of queries, keys and values for each
    /// value head, and the row's products with other rows of its block.
    pub(in crate::model) fn bytes_per_row(&self) -> usize {
        let for_value_heads = self.num_value_heads * (self.key_head_dim + self.value_head_dim);
        4 * (5 * self.conv_width() + 6 * for_value_heads + 8 * self.num_value_heads * super::rule::BLOCK)
    }

    /// Loads one projection to queries, keys, values, gates, corrections and decays, in this order.
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

    /// Returns the order that groups rows by part, for a checkpoint that has parts of these widths for each key head.
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
