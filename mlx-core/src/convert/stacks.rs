//! Tensors that mlx-lm splits or joins: experts become stacks, and the projection that expands latents becomes two stacks with one
//! matrix per head. Invariant: pure.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::array::float_dtype;
use crate::model::{DecoderConfig, ExpertTensors, LatentConfig, MixerKind};
use crate::weights::Entry;

/// The families with one stack for keys and one for values in mlx-lm, instead of one projection of latents.
const EXPANDED_BY_HEAD: [&str; 8] = [
    "deepseek_v3",
    "kimi_k2",
    "joyai_llm_flash",
    "kimi_k25",
    "kimi_linear",
    "glm4_moe_lite",
    "mistral3",
    "mistral4",
];

/// A stack of matrices `[matrices, output, input]` and its source tensors.
pub(super) struct Stack {
    pub(super) name: String,
    /// The sources, in order.
    pub(super) sources: Vec<Entry>,
    pub(super) shape: Vec<usize>,
    /// The columns that become the rows of a matrix in the stack, if each source is a matrix `[input, ...]`.
    pub(super) columns: Option<Range<usize>>,
}

/// The stacking of a model's tensors in mlx-lm.
#[derive(Clone, Copy)]
pub(super) struct Stacks<'a> {
    config: &'a DecoderConfig,
    /// The module name of expert stacks.
    module_name: &'static str,
    latent: Option<LatentConfig>,
    /// True if tensors with all experts are `[experts, input, output]`.
    transposed: bool,
}

impl<'a> Stacks<'a> {
    /// Returns the stacking for a model of this family with these tensors.
    pub(super) fn new(family: &str, config: &'a DecoderConfig, tensors: &BTreeMap<String, Entry>) -> Self {
        let latent = config.layers.iter().find_map(|layer| match layer.mixer {
            MixerKind::Latent(latent) => Some(latent),
            _ => None,
        });
        let place = match family {
            "dots1" => "experts",
            "gemma4" | "gemma4_text" | "gemma4_unified" => "experts.switch_glu",
            _ => "switch_mlp",
        };
        Self {
            config,
            module_name: place,
            latent: latent.filter(|_| EXPANDED_BY_HEAD.contains(&family)),
            transposed: are_transposed(config, tensors),
        }
    }

    /// Returns the stacks that replace a tensor with the matrices of all experts or heads; empty for any other tensor.
    pub(super) fn of(&self, name: &str, entry: &Entry) -> Vec<Stack> {
        if float_dtype(entry.dtype).is_none() {
            return Vec::new();
        }
        let stacks = self.latents(name, entry).or_else(|| self.experts(name, entry));
        stacks.or_else(|| self.dense(name, entry)).unwrap_or_default()
    }

    /// Returns the name of the stack for the tensor of a single expert, and the index of the expert.
    pub(super) fn expert(&self, name: &str) -> Option<(String, usize)> {
        let (prefix, rest) = name.split_once(".experts.")?;
        let (index, part) = rest.split_once('.')?;
        let plain = self.tensors() == Some(ExpertTensors::Plain);
        let part = match part {
            "up_proj.weight" if plain => "fc1",
            "down_proj.weight" if plain => "fc2",
            "gate_proj.weight" | "w1.weight" => "gate_proj",
            "up_proj.weight" | "w3.weight" => "up_proj",
            "down_proj.weight" | "w2.weight" => "down_proj",
            _ => return None,
        };
        Some((format!("{prefix}.{}.{part}.weight", self.module_name), index.parse().ok()?))
    }

    fn tensors(&self) -> Option<ExpertTensors> {
        self.config.experts.as_ref().map(|experts| experts.tensors)
    }

    /// Splits the dense block of Granite 4, which stores gate and up in one matrix, gate first.
    fn dense(&self, name: &str, entry: &Entry) -> Option<Vec<Stack>> {
        let (prefix, part) = name.split_once(".shared_mlp.").filter(|_| self.config.experts.is_none())?;
        let [outputs, inputs] = entry.shape[..] else { return None };
        let stack = |part: &str, source: Entry, outputs: usize| Stack {
            name: format!("{prefix}.mlp.{part}.weight"),
            sources: vec![source],
            shape: vec![outputs, inputs],
            columns: None,
        };
        let half = entry.length / 2;
        match part {
            "input_linear.weight" => Some(vec![
                stack("gate_proj", entry.part(0..half), outputs / 2),
                stack("up_proj", entry.part(half..entry.length), outputs / 2),
            ]),
            "output_linear.weight" => Some(vec![stack("down_proj", entry.clone(), outputs)]),
            _ => None,
        }
    }

    /// Splits the projection that expands latents into one stack to the latent space and one out of it.
    fn latents(&self, name: &str, entry: &Entry) -> Option<Vec<Stack>> {
        let prefix = name.strip_suffix("kv_b_proj.weight")?;
        let LatentConfig { num_heads, kv_lora_rank, qk_nope_head_dim, v_head_dim, .. } = self.latent?;
        let rows = qk_nope_head_dim + v_head_dim;
        if entry.shape != [num_heads * rows, kv_lora_rank] {
            return None;
        }
        let row = entry.length / entry.shape[0];
        let part = |from: usize, to: usize| {
            let of_head = |head: usize| entry.part((head * rows + from) * row..(head * rows + to) * row);
            (0..num_heads).map(of_head).collect()
        };
        let keys = Stack {
            name: format!("{prefix}embed_q.weight"),
            sources: part(0, qk_nope_head_dim),
            shape: vec![num_heads, kv_lora_rank, qk_nope_head_dim],
            columns: Some(0..kv_lora_rank),
        };
        let values = Stack {
            name: format!("{prefix}unembed_out.weight"),
            sources: part(qk_nope_head_dim, rows),
            shape: vec![num_heads, v_head_dim, kv_lora_rank],
            columns: None,
        };
        Some(vec![keys, values])
    }

    /// Splits a tensor with all experts into gate, up and down.
    fn experts(&self, name: &str, entry: &Entry) -> Option<Vec<Stack>> {
        let [gate_up, down] = match self.tensors()? {
            ExpertTensors::InOne(names) => names,
            ExpertTensors::Each(_) | ExpertTensors::Transposed => {
                ["experts.gate_up_proj", "experts.down_proj"]
            }
            ExpertTensors::Interleaved | ExpertTensors::Plain => return None,
        };
        let [count, rows, columns] = entry.shape[..] else { return None };
        let of_expert = entry.length / count;
        let experts = |from: usize, to: usize| -> Vec<Entry> {
            (0..count).map(|expert| entry.part(expert * of_expert + from..expert * of_expert + to)).collect()
        };
        let stack = |prefix: &str, part: &str, sources: Vec<Entry>, outputs: Range<usize>| Stack {
            name: format!("{prefix}{}.{part}.weight", self.module_name),
            sources,
            shape: vec![count, outputs.len(), if self.transposed { rows } else { columns }],
            columns: self.transposed.then_some(outputs),
        };
        let outputs = if self.transposed { columns } else { rows };
        if let Some(prefix) = name.strip_suffix(down) {
            return Some(vec![stack(prefix, "down_proj", experts(0, of_expert), 0..outputs)]);
        }
        let prefix = name.strip_suffix(gate_up)?;
        let half = if self.transposed {
            [0..of_expert, 0..of_expert]
        } else {
            [0..of_expert / 2, of_expert / 2..of_expert]
        };
        let [gate, up] = half.map(|bytes| experts(bytes.start, bytes.end));
        Some(vec![
            stack(prefix, "gate_proj", gate, 0..outputs / 2),
            stack(prefix, "up_proj", up, outputs / 2..outputs),
        ])
    }
}

/// Returns true if tensors with all experts are `[experts, input, output]`. The last dimensions of both tensors show this.
fn are_transposed(config: &DecoderConfig, tensors: &BTreeMap<String, Entry>) -> bool {
    let Some(experts) = config.experts.as_ref().filter(|it| it.tensors == ExpertTensors::Transposed) else {
        return false;
    };
    let differs = |name: &str, entry: &Entry, end: &str, inputs: usize| {
        name.ends_with(end) && entry.shape.last() != Some(&inputs)
    };
    tensors.iter().any(|(name, entry)| {
        differs(name, entry, "experts.down_proj", experts.intermediate_size)
            || differs(name, entry, "experts.gate_up_proj", config.hidden_size)
    })
}
