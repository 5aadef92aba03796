//! The shape of a Mamba-2 layer, as config.json gives it.

use crate::model::activation::Activation;

/// When the output of a Mamba-2 layer is normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedNorm {
    /// After it is multiplied with its gate.
    AfterGate,
    /// Before that.
    BeforeGate,
    /// Never.
    None,
}

/// The shape of a Mamba-2 layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Config {
    /// Heads, each with a memory and a decay.
    pub num_heads: usize,
    /// Dimensions of a head's input.
    pub head_dim: usize,
    /// Dimensions of what is written with and read with.
    pub state_size: usize,
    /// How many of those there are for all heads; divides the heads. The norm has as many groups.
    pub n_groups: usize,
    /// The rows that the convolution sees, the newest included; at least 2.
    pub conv_kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections into the layer and out of it have biases; where config.json does not say, those that the checkpoint has.
    pub biases: Option<[bool; 2]>,
    /// The function behind the convolution.
    pub activation: Activation,
    /// The least and the largest time step.
    pub time_step_limit: [f32; 2],
    /// When the output is normalized.
    pub norm: GatedNorm,
    /// Factors of the gate, the input, what is written with, what is read with and the time step, as they are projected.
    pub multipliers: Option<[f32; 5]>,
}

impl Mamba2Config {
    /// The width of the heads' inputs, and of the gates.
    pub(in crate::model) fn intermediate_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The width of what is convolved.
    pub(in crate::model) fn conv_width(&self) -> usize {
        self.intermediate_size() + 2 * self.n_groups * self.state_size
    }

    /// The widths of gate, input, what is written with, what is read with and time steps, in this order.
    pub(crate) fn widths(&self) -> [usize; 5] {
        let (inner, group) = (self.intermediate_size(), self.n_groups * self.state_size);
        [inner, inner, group, group, self.num_heads]
    }

    /// Bytes of the state of a layer, with activations of `size` bytes.
    pub(in crate::model) fn state_bytes(&self, size: usize) -> usize {
        (self.conv_kernel - 1) * self.conv_width() * size + 4 * self.intermediate_size() * self.state_size
    }

    /// Bytes of a row of a prompt on its way through the layer: copies of what is convolved and of inputs and outputs, its share of the
    /// memories at the ends of blocks, and its relations to the other rows of a block.
    pub(in crate::model) fn bytes_per_row(&self) -> usize {
        let memories = 3 * self.intermediate_size() * self.state_size / super::scan::BLOCK;
        let inner = 8 * self.intermediate_size() + 2 * self.num_heads * self.state_size;
        4 * (6 * self.conv_width() + inner + memories + 6 * self.num_heads * super::scan::BLOCK)
    }
}
