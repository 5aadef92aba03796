//! A dense module: a linear layer with an activation. It runs on the host, because one vector is little work.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use safetensors::Dtype;

use crate::config::Fields;
use crate::error::{Error, Result};
use crate::weights::{Checkpoint, Entry};

/// The number of independent partial sums, which the compiler vectorizes. The order of additions never changes.
const LANES: usize = 8;

/// The maximum number of values in a matrix.
const MAX_NUMBERS: usize = 1 << 28;

/// An element-wise function.
type Activation = fn(f32) -> f32;

/// Activations by torch's class name.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("Identity", |x| x),
    ("Tanh", f32::tanh),
    ("ReLU", |x| x.max(0.0)),
    ("GELU", gelu),
    ("SiLU", |x| x / (1.0 + (-x).exp())),
    ("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
];

/// A dense module.
#[derive(Debug, Clone)]
pub(super) struct Dense {
    inputs: usize,
    /// The length of an output vector.
    pub(super) outputs: usize,
    has_bias: bool,
    activation: Activation,
    file: PathBuf,
    /// The weights, read with the first vector.
    weights: Arc<OnceLock<Weights>>,
}

/// The matrix in row-major order and the bias, which may be empty.
#[derive(Debug)]
struct Weights {
    matrix: Vec<f32>,
    bias: Vec<f32>,
}

impl Dense {
    /// Reads the config of the module in `folder` and checks the headers of its weights.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        for key in ["module_input_name", "module_output_name"] {
            if let Some(other) = fields.optional_text(key)?.filter(|name| *name != "sentence_embedding") {
                return Err(fields.error(key, format!("is {other:?}; supported is sentence_embedding")));
            }
        }
        if fields.optional_flag("use_residual")? == Some(true) {
            return Err(fields.error("use_residual", "is true, which is not supported"));
        }
        let file = folder.join("model.safetensors");
        if !file.is_file() {
            let message = "has no model.safetensors; weights in other formats are not supported";
            return Err(Error::file(folder, message));
        }
        let dense = Self {
            inputs: fields.size("in_features")?,
            outputs: fields.size("out_features")?,
            has_bias: fields.optional_flag("bias")?.unwrap_or(true),
            activation: activation(&fields)?,
            file,
            weights: Arc::default(),
        };
        if dense.inputs.saturating_mul(dense.outputs) > MAX_NUMBERS {
            return Err(
                fields.error("out_features", format!("gives a matrix of more than {MAX_NUMBERS} numbers"))
            );
        }
        dense.take(|_, _| Ok(Vec::new()))?;
        Ok(dense)
    }

    /// Returns the output of the layer.
    pub(super) fn forward(&self, vector: &[f32]) -> Result<Vec<f32>> {
        if vector.len() != self.inputs {
            let message = format!("expects {} numbers, not {}", self.inputs, vector.len());
            return Err(Error::file(&self.file, message));
        }
        let weights = if let Some(weights) = self.weights.get() {
            weights
        } else {
            let read = self.take(numbers)?;
            self.weights.get_or_init(|| read)
        };
        let bias = weights.bias.iter().copied().chain(std::iter::repeat(0.0));
        let rows = weights.matrix.chunks_exact(self.inputs).zip(bias);
        Ok(rows.map(|(row, bias)| (self.activation)(product(row, vector) + bias)).collect())
    }

    /// Takes both tensors of the file; `read` returns the values of each.
    fn take(&self, read: impl Fn(&Checkpoint, &Entry) -> Result<Vec<f32>>) -> Result<Weights> {
        let mut checkpoint = Checkpoint::open_file(self.file.clone())?;
        let mut take = |name: &str, shape: &[usize]| {
            let entry = checkpoint.take(name, shape, "the module's config.json")?;
            if !matches!(entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                let message =
                    format!("tensor {name} has type {:?}; supported are F32, F16 and BF16", entry.dtype);
                return Err(checkpoint.error(&entry, message));
            }
            read(&checkpoint, &entry)
        };
        let matrix = take("linear.weight", &[self.outputs, self.inputs])?;
        let bias = if self.has_bias { take("linear.bias", &[self.outputs])? } else { Vec::new() };
        Ok(Weights { matrix, bias })
    }
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

/// Reads the values of a tensor.
fn numbers(checkpoint: &Checkpoint, entry: &Entry) -> Result<Vec<f32>> {
    let bytes = checkpoint.read_part(entry, 0..entry.length)?;
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Ok(match entry.dtype {
        Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
    })
}
