//! Takes the tensors that describe changes of the inputs of quantized matrices.

use safetensors::Dtype;

use super::Weights;
use super::checkpoint::Entry;
use super::tensor::NamedShape;
use crate::error::Result;
use crate::quantization::{INPUT_PARTS, InputChange};

/// The ends of the names of signs of a rotation, and of an order of inputs.
const SIGNS: &str = INPUT_PARTS[0];
const ORDER: &str = INPUT_PARTS[1];

impl Weights<'_> {
    /// Returns true if a module changes its inputs before the product.
    pub(crate) fn changes_inputs(&self, module: &str) -> bool {
        INPUT_PARTS.iter().any(|part| self.has(&format!("{module}.{part}")))
    }

    /// Returns true if two modules of the files change their inputs in the same way, or not at all.
    pub(super) fn have_same_inputs(&self, one: &str, other: &str) -> bool {
        let is_same = |part: &str| {
            let [one, other] = [one, other].map(|module| self.file_name_of(&format!("{module}.{part}")));
            match (self.checkpoint.has(&one), self.checkpoint.has(&other)) {
                (false, false) => true,
                (true, true) => self.checkpoint.are_equal(&one, &other).unwrap_or(false),
                _ => false,
            }
        };
        let [one_block, other_block] =
            [one, other].map(|module| self.quantization.rotation_of(&self.file_name_of(module)));
        one_block == other_block && INPUT_PARTS.into_iter().all(is_same)
    }

    /// Takes the change of the inputs of modules that [have the same](Self::have_same_inputs), by their names in the files.
    pub(super) fn take_input_change(&mut self, modules: &[NamedShape]) -> Result<Option<InputChange>> {
        let Some((module, shape)) = modules.first() else { return Ok(None) };
        let inputs = shape.last().copied().unwrap_or(0);
        let change = if let Some(block) = self.quantization.rotation_of(module) {
            Some(self.rotation(module, inputs, block)?)
        } else if self.checkpoint.has(&format!("{module}.{ORDER}")) {
            Some(self.order(module, inputs)?)
        } else {
            None
        };
        if change.is_some() {
            for (module, _) in modules {
                for part in INPUT_PARTS {
                    self.checkpoint.remove(&format!("{module}.{part}"));
                }
            }
        }
        Ok(change)
    }

    fn rotation(&mut self, module: &str, inputs: usize, block: usize) -> Result<InputChange> {
        let name = format!("{module}.{SIGNS}");
        let (entry, bytes) = self.bytes_of(&name, inputs)?;
        let fault = |message: String| Err(self.checkpoint.error(&entry, format!("tensor {name} {message}")));
        if !block.is_power_of_two() || !inputs.is_multiple_of(block) {
            return fault(format!("has {inputs} signs, which are no blocks of {block}, a power of two"));
        }
        let signs: Option<Vec<f32>> = match entry.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|it| sign(f32::from_le_bytes(*it))).collect(),
            Dtype::F16 => {
                bytes.as_chunks().0.iter().map(|it| sign(half::f16::from_le_bytes(*it).into())).collect()
            }
            Dtype::BF16 => {
                bytes.as_chunks().0.iter().map(|it| sign(half::bf16::from_le_bytes(*it).into())).collect()
            }
            Dtype::I8 => bytes.iter().map(|it| sign(f32::from(*it as i8))).collect(),
            other => return fault(format!("has type {other:?}; supported are F32, F16, BF16 and I8")),
        };
        match signs {
            Some(signs) => Ok(InputChange::rotation(&signs, block)),
            None => fault("has numbers other than 1 and -1".to_owned()),
        }
    }

    fn order(&mut self, module: &str, inputs: usize) -> Result<InputChange> {
        let (_, bytes) = self.bytes_of(&format!("{module}.{ORDER}"), inputs)?;
        let order: Vec<u32> = bytes.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        Ok(InputChange::order(&order))
    }

    /// Takes a vector of this length. Returns its entry and bytes.
    fn bytes_of(&mut self, name: &str, length: usize) -> Result<(Entry, Vec<u8>)> {
        let entry = self.checkpoint.take(name, &[length], "its module")?;
        let bytes = self.checkpoint.read_part(&entry, 0..entry.length)?;
        self.read += entry.file_bytes;
        self.hash.update(&bytes);
        Ok((entry, bytes))
    }
}

fn sign(number: f32) -> Option<f32> {
    (number.abs().to_bits() == 1_f32.to_bits()).then_some(number)
}
