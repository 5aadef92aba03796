//! A tensor of the files from which others are computed.

use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::quantization::dequantize::e4m3;
use crate::weights::checkpoint::Entry;
use crate::weights::source::Source;

#[derive(Debug)]
pub(super) struct Operand {
    pub(super) name: String,
    pub(super) entry: Entry,
    pub(super) source: Source,
}

impl Operand {
    pub(super) fn path(&self) -> &Path {
        self.source.file.path()
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.entry.shape
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.entry.dtype
    }

    /// Returns an error about this tensor.
    pub(super) fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::file(self.path(), format!("tensor {} {message}", self.name))
    }

    /// Returns the sides of a matrix, neither of which is 0.
    pub(super) fn matrix(&self) -> Result<[usize; 2]> {
        match self.shape() {
            &[rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            shape => Err(self.error(format_args!("has shape {shape:?}; it must be a matrix"))),
        }
    }

    pub(super) fn expect_shape(&self, shape: &[usize]) -> Result<()> {
        if self.shape() == shape {
            return Ok(());
        }
        Err(self.error(format_args!("has shape {:?}; its module needs {shape:?}", self.shape())))
    }

    pub(super) fn expect_type(&self, types: &[Dtype]) -> Result<()> {
        if types.contains(&self.dtype()) {
            return Ok(());
        }
        Err(self.error(format_args!("has type {:?}; supported are {types:?}", self.dtype())))
    }

    /// Reads `count` bytes from offset `start`.
    pub(super) fn bytes(&self, start: usize, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.source.read_at(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads `count` 32-bit words from word `start`.
    pub(super) fn words(&self, start: usize, count: usize) -> Result<Vec<u32>> {
        Ok(self
            .bytes(start * 4, count * 4)?
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect())
    }

    /// Reads `count` floats from number `start`.
    pub(super) fn floats(&self, start: usize, count: usize) -> Result<Vec<f32>> {
        let size = self.dtype().bitsize() / 8;
        decode(&self.bytes(start * size, count * size)?, self.dtype())
            .ok_or_else(|| self.error(format_args!("has type {:?}, which is no float", self.dtype())))
    }
}

/// The types that [`Operand::floats`] reads.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

fn decode(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect(),
        Dtype::F16 => halves().map(|it| f16::from_le_bytes(it).to_f32()).collect(),
        Dtype::BF16 => halves().map(|it| bf16::from_le_bytes(it).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|code| e4m3(*code)).collect(),
        _ => return None,
    })
}

/// Writes numbers in this float type, rounded to the nearest.
pub(super) fn encode(numbers: impl Iterator<Item = f32>, dtype: Dtype, bytes: &mut [u8]) {
    match dtype {
        Dtype::F16 => write(numbers, bytes, |number| f16::from_f32(number).to_le_bytes()),
        Dtype::BF16 => write(numbers, bytes, |number| bf16::from_f32(number).to_le_bytes()),
        _ => write(numbers, bytes, f32::to_le_bytes),
    }
}

fn write<const N: usize>(
    numbers: impl Iterator<Item = f32>,
    bytes: &mut [u8],
    encode: impl Fn(f32) -> [u8; N],
) {
    for (to, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *to = encode(number);
    }
}
