//! A dense module: a linear layer with an activation. It runs on the host, because one vector is little work.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::linear::{LinearTensors, Values};
use crate::config::Fields;
use crate::error::{Error, Result};

/// The number of independent partial sums, which the compiler vectorizes. The order of additions never changes.
const LANES: usize = 8;

/// The maximum number of values in a matrix.
const MAX_NUMBERS: usize = 1 << 28;

/// An element-wise function.
type Activation = fn(f32) -> f32;

/// Activations by torch's class name.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("Identity", identity),
    ("Tanh", f32::tanh),
    ("ReLU", |x| x.max(0.0)),
    ("GELU", gelu),
    ("SiLU", |x| x / (1.0 + (-x).exp())),
    ("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
];

/// A dense module.
#[derive(Debug, Clone)]
pub(super) struct Dense {
    tensors: LinearTensors,
    activation: Activation,
    /// The weights, read with the first vector.
    weights: Arc<OnceLock<Values>>,
}

impl Dense {
    /// Reads the config of a module of `model`, the `index`th Dense one, and checks the headers of its weights.
    pub(super) fn open(model: &Path, module: &str, index: usize) -> Result<Self> {
        let folder = model.join(module);
        let file = folder.join("model.safetensors");
        if !file.is_file() {
            let config = Fields::read_optional(&folder.join("config.json"))?;
            let found = Self::of_model(model, config.as_ref(), index)?;
            return found.ok_or_else(|| {
                let message = format!(
                    "has no model.safetensors, and the model no tensor dense.{index}.weight; weights in other formats are not supported"
                );
                Error::file(folder, message)
            });
        }
        let fields = Fields::read(&folder.join("config.json"))?;
        expect_supported(&fields)?;
        let (inputs, outputs) = (fields.size("in_features")?, fields.size("out_features")?);
        if inputs.saturating_mul(outputs) > MAX_NUMBERS {
            return Err(
                fields.error("out_features", format!("gives a matrix of more than {MAX_NUMBERS} numbers"))
            );
        }
        let has_bias = fields.optional_flag("bias")?.unwrap_or(true);
        let tensors = LinearTensors::of_file(file, inputs, outputs, has_bias)?;
        Ok(Self { tensors, activation: activation(&fields)?, weights: Arc::default() })
    }

    /// Opens all modules that `model` has in its own files.
    pub(super) fn all_of_model(model: &Path) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        while let Some(dense) = Self::of_model(model, None, all.len())? {
            all.push(dense);
        }
        Ok(all)
    }

    /// Opens `dense.{index}` of the model's files, in which mlx-embeddings stores the modules of EmbeddingGemma. It writes no configs for
    /// them; they have no activation. `None` if there is no such tensor.
    fn of_model(model: &Path, config: Option<&Fields>, index: usize) -> Result<Option<Self>> {
        let Some(tensors) = LinearTensors::of_model(model, &format!("dense.{index}"))? else {
            return Ok(None);
        };
        config.map_or(Ok(()), expect_supported)?;
        let activation = config.map_or(Ok(identity as Activation), activation)?;
        Ok(Some(Self { tensors, activation, weights: Arc::default() }))
    }

    /// Returns the length of an output vector.
    pub(super) fn outputs(&self) -> usize {
        self.tensors.outputs
    }

    /// Returns the output of the layer.
    pub(super) fn forward(&self, vector: &[f32]) -> Result<Vec<f32>> {
        let inputs = self.tensors.inputs;
        if vector.len() != inputs {
            let message = format!("expects {inputs} numbers, not {}", vector.len());
            return Err(Error::file(&self.tensors.path, message));
        }
        let weights = if let Some(weights) = self.weights.get() {
            weights
        } else {
            let read = self.tensors.read()?;
            self.weights.get_or_init(|| read)
        };
        let bias = weights.bias.iter().copied().chain(std::iter::repeat(0.0));
        let rows = weights.matrix.chunks_exact(inputs).zip(bias);
        Ok(rows.map(|(row, bias)| (self.activation)(product(row, vector) + bias)).collect())
    }
}

fn expect_supported(fields: &Fields) -> Result<()> {
    for key in ["module_input_name", "module_output_name"] {
        if let Some(other) = fields.optional_text(key)?.filter(|name| *name != "sentence_embedding") {
            return Err(fields.error(key, format!("is {other:?}; supported is sentence_embedding")));
        }
    }
    if fields.optional_flag("use_residual")? == Some(true) {
        return Err(fields.error("use_residual", "is true, which is not supported"));
    }
    Ok(())
}

fn activation(fields: &Fields) -> Result<Activation> {
    let Some(path) = fields.optional_text("activation_function")? else { return Ok(f32::tanh) };
    let class = path.strip_prefix("torch.nn.modules.").and_then(|rest| rest.rsplit('.').next());
    let known = ACTIVATIONS.iter().find(|(name, _)| Some(*name) == class);
    known.map(|(_, function)| *function).ok_or_else(|| {
        let names = ACTIVATIONS.map(|(name, _)| name).join(", ");
        fields.error("activation_function", format!("is {path:?}; supported are {names} of torch.nn"))
    })
}

fn identity(x: f32) -> f32 {
    x
}

/// GELU with the error function, torch's default, in f64. Formula 7.1.26 of Abramowitz and Stegun is within 2e-7.
fn gelu(x: f32) -> f32 {
    let scaled = f64::from(x).abs() * std::f64::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * scaled);
    let series = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let erf = (1.0 - series * (-scaled * scaled).exp()) * f64::from(x).signum();
    (0.5 * f64::from(x) * (1.0 + erf)) as f32
}

fn product(row: &[f32], vector: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (rows, vectors) = (row.chunks(LANES), vector.chunks(LANES));
    for (row, vector) in rows.zip(vectors) {
        for ((sum, weight), value) in sums.iter_mut().zip(row).zip(vector) {
            *sum += weight * value;
        }
    }
    sums.iter().sum()
}
