//! The tensors of a linear layer that runs on the host: in a file of its own, or in the model's file, where they may be packed.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;

use crate::config::Fields;
use crate::error::Result;
use crate::quantization::dequantize::Dequantizer;
use crate::quantization::{QuantScheme, QuantizationConfig};
use crate::weights::{Checkpoint, Entry};

/// The types of numbers that are not packed.
const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// The location and the shape of the tensors.
#[derive(Debug, Clone)]
pub(super) struct LinearTensors {
    /// The layer's file, or the model's folder.
    pub(super) path: PathBuf,
    name: String,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    has_bias: bool,
    scheme: Option<QuantScheme>,
}

/// The matrix in row-major order and the bias, which may be empty.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) matrix: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

impl LinearTensors {
    /// Checks the headers of `linear` in a file.
    pub(super) fn of_file(path: PathBuf, inputs: usize, outputs: usize, has_bias: bool) -> Result<Self> {
        let tensors = Self { path, name: "linear".to_owned(), inputs, outputs, has_bias, scheme: None };
        tensors.entries().map(|_| tensors)
    }

    /// Finds the layer `name` in the files of a model. `None` if it is not there.
    pub(super) fn of_model(model: &Path, name: &str) -> Result<Option<Self>> {
        let checkpoint = Checkpoint::open(model)?;
        let find = |part: &str| checkpoint.entries().get(&format!("{name}.{part}"));
        let Some(entry) = find("weight") else { return Ok(None) };
        let &[outputs, columns] = entry.shape.as_slice() else {
            let message = format!("tensor {name}.weight has shape {:?}; it must be a matrix", entry.shape);
            return Err(checkpoint.error(entry, message));
        };
        let config = QuantizationConfig::read(&Fields::read(&model.join("config.json"))?)?;
        let scheme = find("scales").and_then(|_| config.of(name, true));
        let inputs = scheme.map_or(columns, |scheme| scheme.inputs(columns));
        let (path, name, has_bias) = (model.to_owned(), name.to_owned(), find("bias").is_some());
        let tensors = Self { path, name, inputs, outputs, has_bias, scheme };
        tensors.entries().map(|_| Some(tensors))
    }

    /// Reads the values.
    pub(super) fn read(&self) -> Result<Values> {
        let (checkpoint, entries) = self.entries()?;
        let numbers = |entry: &Entry| -> Result<Vec<f32>> {
            let bytes = checkpoint.read_part(entry, 0..entry.length)?;
            let pairs = || bytes.as_chunks::<2>().0.iter();
            Ok(match entry.dtype {
                Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect(),
                Dtype::BF16 => pairs().map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect(),
                _ => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            })
        };
        let [matrix, scales, biases, bias] = &entries;
        let read = |entry: &Option<Entry>| entry.as_ref().map(numbers).transpose();
        let matrix = match (self.scheme, matrix) {
            (_, None) => Vec::new(),
            (None, Some(matrix)) => numbers(matrix)?,
            (Some(scheme), Some(matrix)) => {
                let bytes = checkpoint.read_part(matrix, 0..matrix.length)?;
                let words: Vec<u32> = bytes.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
                let unpack = Dequantizer::new(scheme);
                let scales = match scales {
                    Some(codes) if codes.dtype == Dtype::U8 => {
                        let codes = checkpoint.read_part(codes, 0..codes.length)?;
                        codes.into_iter().map(|code| unpack.scale(code)).collect()
                    }
                    scales => read(scales)?.unwrap_or_default(),
                };
                unpack.dequantize(&words, &scales, read(biases)?.as_deref())
            }
        };
        Ok(Values { matrix, bias: read(bias)?.unwrap_or_default() })
    }

    /// Takes the matrix, its scales, their biases, and the bias of the layer, as far as they exist. Checks their shapes and types.
    fn entries(&self) -> Result<(Checkpoint, [Option<Entry>; 4])> {
        let is_folder = self.path.is_dir();
        let mut checkpoint =
            if is_folder { Checkpoint::open(&self.path)? } else { Checkpoint::open_file(self.path.clone())? };
        let mut take = |part: &str, columns: Option<usize>, allowed: &[Dtype]| -> Result<Option<Entry>> {
            let shape: Vec<usize> = [Some(self.outputs), columns].into_iter().flatten().collect();
            let name = format!("{}.{part}", self.name);
            let entry = checkpoint.take(&name, &shape, "the module's config.json")?;
            if !allowed.contains(&entry.dtype) {
                let allowed = allowed.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(", ");
                let message = format!("tensor {name} has type {:?}; supported are {allowed}", entry.dtype);
                return Err(checkpoint.error(&entry, message));
            }
            Ok(Some(entry))
        };
        let (mut scales, mut biases) = (None, None);
        let matrix = match self.scheme {
            None => take("weight", Some(self.inputs), &FLOATS)?,
            Some(scheme) => {
                let groups = Some(self.inputs / scheme.group_size);
                let of_scales: &[Dtype] = if scheme.has_biases() { &FLOATS } else { &[Dtype::U8] };
                scales = take("scales", groups, of_scales)?;
                if scheme.has_biases() {
                    biases = take("biases", groups, &FLOATS)?;
                }
                take("weight", scheme.words(self.inputs), &[Dtype::U32])?
            }
        };
        let bias = if self.has_bias { take("bias", None, &FLOATS)? } else { None };
        Ok((checkpoint, [matrix, scales, biases, bias]))
    }
}
