//! The config of a Mamba-2 layer.

use crate::model::activation::Activation;

/// The position of the norm relative to the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedNorm {
    /// After the gate.
    AfterGate,
    /// Before the gate.
    BeforeGate,
    /// No norm.
    None,
}

/// The shape of a Mamba-2 layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Config {
    /// The number of heads, each with a memory and a decay.
    pub num_heads: usize,
    /// The dimensions of a head's input.
    pub head_dim: usize,
    /// The dimensions of `B` and `C`.
    pub state_size: usize,
    /// The number of different `B` and `C`. It divides the number of heads. The norm has as many groups.
    pub n_groups: usize,
    /// The number of machines that share each group, with a part of its heads.
    pub group_ranks: usize,
    /// The number of rows that the convolution sees, the newest included; at least 2.
    pub conv_kernel: usize,
    /// True if the convolution has a bias.
    pub conv_bias: bool,
    /// True for the input and the output projection if they have biases. `None` if config.json does not define it; the tensors then decide.
    pub biases: Option<[bool; 2]>,
    /// The activation function after the convolution.
    pub activation: Activation,
    /// The minimum and the maximum time step.
    pub time_step_limit: [f32; 2],
    /// The position of the norm.
    pub norm: GatedNorm,
    /// Factors of the projected gate, input, `B`, `C` and time step.
    pub multipliers: Option<[f32; 5]>,
}

impl Mamba2Config {
    /// The width of the heads' inputs, and of the gates.
    pub(in crate::model) fn intermediate_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The width of the convolution's input.
    pub(in crate::model) fn conv_width(&self) -> usize {
        self.intermediate_size() + 2 * self.n_groups * self.state_size
    }

    /// The widths of gate, input, `B`, `C` and time steps, in this order.
    pub(crate) fn widths(&self) -> [usize; 5] {
        let (inner, group) = (self.intermediate_size(), self.n_groups * self.state_size);
        [inner, inner, group, group, self.num_heads]
    }

    /// Returns the bytes of the state of a layer, with activations of `size` bytes.
    pub(in crate::model) fn state_bytes(&self, size: usize) -> usize {
        (self.conv_kernel - 1) * self.conv_width() * size + 4 * self.intermediate_size() * self.state_size
    }

    /// Returns the temporary bytes of a prompt row in the layer: copies of the convolution's input and of inputs and outputs, its share of
    /// the memories at the ends of blocks, and its products with other rows of its block.
    pub(in crate::model) fn bytes_per_row(&self) -> usize {
        let memories = 3 * self.intermediate_size() * self.state_size / super::scan::BLOCK;
        let inner = 8 * self.intermediate_size() + 2 * self.num_heads * self.state_size;
        4 * (6 * self.conv_width() + inner + memories + 6 * self.num_heads * super::scan::BLOCK)
    }
}
