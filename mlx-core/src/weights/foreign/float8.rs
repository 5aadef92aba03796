//! 8-bit floats (e4m3). Scales by tensor or row become a power of two in the codes' format mxfp8 and a scale of rows; scales of blocks stay if
//! they are powers of two. Both are exact. MLX has no format for blocks with other scales, so these are computed in bf16.

use std::collections::BTreeSet;
use std::sync::Arc;

use half::bf16;
use safetensors::Dtype;

use super::computed::Rows;
use super::operand::{FLOATS, Operand, encode};
use super::rewriter::Rewriter;
use crate::error::Result;
use crate::quantization::dequantize::e4m3;
use crate::quantization::{Foreign, Mode, QuantScheme};

const MXFP8: QuantScheme = QuantScheme { mode: Mode::Mxfp8, bits: 8, group_size: 32 };

/// The names of scales, by tool.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

/// The ends of the names of scales of stacks.
const SCALES_OF_STACKS: [&str; 2] = ["_scale_inv", "_scale"];

/// The number of scales that are checked at a time.
const CHECKED: usize = 1 << 16;

/// The bytes of a scale that are powers of two.
const EXPONENTS: [Dtype; 2] = [Dtype::F8_E8M0, Dtype::U8];

/// The exponent of 1 in a byte.
const ONE: i32 = 127;

/// The format in the files of weights that become bf16, for reports.
pub(super) const ORIGIN: &str = "fp8 in blocks";

/// Replaces all matrices of 8-bit floats and their scales.
pub(super) fn rewrite(rewriter: &mut Rewriter, foreign: &Foreign) -> Result<()> {
    let modules = rewriter.modules("weight", &[Dtype::F8_E4M3]);
    let stacks = rewriter.stacks(Dtype::F8_E4M3);
    let inexact = inexact_groups(rewriter, &modules, &stacks)?;
    let is_exact = |name: &str| !inexact.contains(group_of(name));
    for module in modules {
        let codes = rewriter.take(&module, "weight")?;
        let found = SCALES.iter().find_map(|part| rewriter.find(&format!("{module}.{part}")));
        let Some(scales) = found else {
            return Err(codes.error(format_args!("has type F8_E4M3, but {module}.weight_scale is missing")));
        };
        let [outputs, inputs] = codes.matrix()?;
        let (shape, exact) = ([1, outputs, inputs], is_exact(&module));
        Float8 { codes, scales, shape, exact }.replace(rewriter, module, foreign.block)?;
    }
    // The experts of a layer in one tensor.
    for name in stacks {
        let found = SCALES_OF_STACKS.iter().find_map(|end| rewriter.find(&format!("{name}{end}")));
        let Some(scales) = found else { continue };
        let Some(codes) = rewriter.find(&name) else { continue };
        let shape = match *codes.shape() {
            [count, outputs, inputs] if count * outputs * inputs > 0 => [count, outputs, inputs],
            _ => return Err(codes.error("is empty")),
        };
        let exact = is_exact(&name);
        Float8 { codes, scales, shape, exact }.replace(rewriter, name, foreign.block)?;
    }
    Ok(())
}

/// Returns the matrices that must have the same format: all experts of a layer, or only the module itself.
fn group_of(module: &str) -> &str {
    module.split_once(".experts.").map_or(module, |(layer, _)| layer)
}

/// Returns the groups with a scale that is not a power of two. config.json mentions powers of two only for some checkpoints.
fn inexact_groups(rewriter: &Rewriter, modules: &[String], stacks: &[String]) -> Result<BTreeSet<String>> {
    let of_modules =
        modules.iter().flat_map(|module| SCALES.map(|part| (module, format!("{module}.{part}"))));
    let of_stacks = stacks.iter().flat_map(|name| SCALES_OF_STACKS.map(|end| (name, format!("{name}{end}"))));
    let mut inexact = BTreeSet::new();
    for (module, name) in of_modules.chain(of_stacks) {
        let group = group_of(module);
        if inexact.contains(group) {
            continue;
        }
        let scales = rewriter.peek(&name).filter(|scales| FLOATS.contains(&scales.dtype()));
        if scales.map(|scales| are_powers_of_two(&scales)).transpose()? == Some(false) {
            inexact.insert(group.to_owned());
        }
    }
    Ok(inexact)
}

/// Returns true if all scales are powers of two. Blocks of zeros may have the scale 0.
fn are_powers_of_two(scales: &Operand) -> Result<bool> {
    let count = scales.shape().iter().product::<usize>();
    for start in (0..count).step_by(CHECKED) {
        let some = scales.floats(start, CHECKED.min(count - start))?;
        if !some.into_iter().all(|scale| scale == 0.0 || is_power_of_two(scale)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_power_of_two(scale: f32) -> bool {
    split(scale).1.to_bits() == 1_f32.to_bits()
}

/// A matrix of 8-bit floats, or a stack of them, and its scales.
#[derive(Debug, Clone)]
struct Float8 {
    codes: Arc<Operand>,
    scales: Arc<Operand>,
    /// Matrices, outputs and inputs.
    shape: [usize; 3],
    /// True if all scales are powers of two, or 0.
    exact: bool,
}

/// The rows and columns that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocks {
    sides: [usize; 2],
    /// The numbers of blocks in a matrix: one below the other, and beside each other.
    counts: [usize; 2],
    /// The number of rows in a matrix.
    rows: usize,
}

impl Blocks {
    /// Returns the number of the blocks' row that contains row `row` of the stack.
    fn row(&self, row: usize) -> usize {
        row / self.rows * self.counts[0] + row % self.rows / self.sides[0]
    }
}

impl Float8 {
    fn replace(self, rewriter: &mut Rewriter, module: String, block: [usize; 2]) -> Result<()> {
        let blocks = self.blocks(block)?;
        let [_, _, inputs] = self.shape;
        let by_row = blocks.counts[1] == 1 && blocks.sides[1] >= inputs;
        let is_exponent = EXPONENTS.contains(&self.scales.dtype());
        let groups_fit = blocks.sides[1].is_multiple_of(MXFP8.group_size) || by_row;
        if !inputs.is_multiple_of(MXFP8.group_size) || !groups_fit || !(by_row || is_exponent || self.exact) {
            self.put_floats(rewriter, blocks);
            return Ok(());
        }
        let file_bytes = self.scales.entry.file_bytes;
        rewriter.put_as(&module, "weight", &self.codes, Dtype::U32, self.shape_of(inputs / 4));
        let form = |dtype, width| (dtype, self.shape_of(width));
        let has_factors = by_row && !is_exponent && !self.exact;
        let exponents = Exponents { matrix: self.clone(), blocks, has_factors };
        let width = inputs / MXFP8.group_size;
        rewriter.put(
            &format!("{module}.scales"),
            form(Dtype::U8, width),
            exponents,
            &self.scales,
            file_bytes,
        );
        if has_factors {
            let factors = Factors { matrix: self.clone(), blocks };
            rewriter.put(&format!("{module}.row_scales"), form(Dtype::F32, 1), factors, &self.scales, 0);
        }
        rewriter.set_scheme(module, MXFP8);
        Ok(())
    }

    fn put_floats(&self, rewriter: &mut Rewriter, blocks: Blocks) {
        let file_bytes = self.codes.entry.file_bytes + self.scales.entry.file_bytes;
        let floats =
            Floats { matrix: self.clone(), blocks, table: std::array::from_fn(|code| e4m3(code as u8)) };
        let form = (Dtype::BF16, self.codes.shape().to_vec());
        rewriter.put(&self.codes.name, form, floats, &self.codes, file_bytes);
        rewriter.set_origin(&self.codes.name, ORIGIN);
    }

    /// Returns the shape of a tensor with `width` columns.
    fn shape_of(&self, width: usize) -> Vec<usize> {
        let shape = self.codes.shape();
        [&shape[..shape.len() - 1], &[width]].concat()
    }

    /// Returns the blocks that the shape of the scales implies. `block` are the sides of a block in the settings.
    fn blocks(&self, block: [usize; 2]) -> Result<Blocks> {
        self.scales.expect_type(&[FLOATS.as_slice(), EXPONENTS.as_slice()].concat())?;
        let [count, outputs, inputs] = self.shape;
        let counts = [outputs.div_ceil(block[0]), inputs.div_ceil(block[1])];
        let groups = [outputs, inputs / MXFP8.group_size];
        // A single matrix has no axis of matrices.
        let shape = self.scales.shape();
        let own = match shape.split_first() {
            Some((first, own)) if self.codes.shape().len() == 3 && *first == count => own,
            _ if self.codes.shape().len() == 3 && shape.iter().product::<usize>() != 1 => &[0],
            _ => shape,
        };
        let of = |sides, counts| Ok(Blocks { sides, counts, rows: outputs });
        match *own {
            [] | [1] | [1, 1] if own.len() < shape.len() => of([outputs, inputs], [1, 1]),
            [] | [1] | [1, 1] | [1, 1, 1] => {
                Ok(Blocks { sides: [count * outputs, inputs], counts: [1, 1], rows: count * outputs })
            }
            [rows] | [rows, 1] if rows == outputs => of([1, inputs], [rows, 1]),
            [down, across] | [down, 1, across, 1] if [down, across] == counts => of(block, counts),
            [down, across] if [down, across] == groups && inputs.is_multiple_of(MXFP8.group_size) => {
                of([1, MXFP8.group_size], groups)
            }
            _ => Err(self.scales.error(format_args!(
                "has shape {shape:?} for a matrix {:?}; it must have one scale, one per row, or one per block of {block:?}",
                self.codes.shape()
            ))),
        }
    }

    /// Returns the scales of the blocks that contain row `row`.
    fn scales_of(&self, row: usize, blocks: Blocks) -> Result<Vec<f32>> {
        let (start, across) = (blocks.row(row) * blocks.counts[1], blocks.counts[1]);
        if EXPONENTS.contains(&self.scales.dtype()) {
            let codes = self.scales.bytes(start, across)?;
            return Ok(codes.into_iter().map(|code| 2_f32.powi(i32::from(code) - ONE)).collect());
        }
        self.scales.floats(start, across)
    }
}

/// Returns the exponent of a scale, in a byte, and the factor that remains. It is from 1 to 2 for usual scales.
fn split(scale: f32) -> (u8, f32) {
    if !scale.is_normal() {
        return (ONE as u8, scale);
    }
    let exponent = (scale.to_bits() >> 23 & 0xff).clamp(1, 253) as u8;
    (exponent, scale / 2_f32.powi(i32::from(exponent) - ONE))
}

/// Rows of exponents, one for each group of inputs.
#[derive(Debug)]
struct Exponents {
    matrix: Float8,
    blocks: Blocks,
    /// True if factors remain, which become row scales.
    has_factors: bool,
}

impl Rows for Exponents {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.matrix.shape[2] / MXFP8.group_size;
        let per_block = self.blocks.sides[1] / MXFP8.group_size;
        let mut last: Option<(usize, Vec<u8>)> = None;
        for (row, to) in bytes.chunks_exact_mut(width).enumerate() {
            let block = self.blocks.row(first + row);
            if last.as_ref().is_none_or(|(known, _)| *known != block) {
                last = Some((block, self.exponents_of(first + row)?));
            }
            let exponents = last.iter().flat_map(|(_, exponents)| exponents);
            let repeated = exponents.flat_map(|exponent| std::iter::repeat_n(*exponent, per_block));
            to.iter_mut().zip(repeated).for_each(|(to, exponent)| *to = exponent);
        }
        Ok(())
    }
}

impl Exponents {
    /// Returns the exponents of the blocks that contain row `row`.
    fn exponents_of(&self, row: usize) -> Result<Vec<u8>> {
        let scales = &self.matrix.scales;
        if EXPONENTS.contains(&scales.dtype()) {
            let across = self.blocks.counts[1];
            return scales.bytes(self.blocks.row(row) * across, across);
        }
        // The smallest exponent for 0: its product with the largest code is below 1e-35.
        let of_zero = if self.has_factors { ONE as u8 } else { 0 };
        let exponent = |scale: f32| if scale == 0.0 { of_zero } else { split(scale).0 };
        Ok(self.matrix.scales_of(row, self.blocks)?.into_iter().map(exponent).collect())
    }
}

/// Rows with the factor that remains of their scale.
#[derive(Debug)]
struct Factors {
    matrix: Float8,
    blocks: Blocks,
}

impl Rows for Factors {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let count = bytes.len() / 4;
        let start = self.blocks.row(first);
        let end = self.blocks.row(first + count.saturating_sub(1)) + 1;
        let scales = self.matrix.scales.floats(start, end - start)?;
        let factors = (first..first + count).map(|row| split(scales[self.blocks.row(row) - start]).1);
        encode(factors, Dtype::F32, bytes);
        Ok(())
    }
}

/// Rows in bf16.
#[derive(Debug)]
struct Floats {
    matrix: Float8,
    blocks: Blocks,
    /// The value of each code.
    table: [f32; 256],
}

impl Rows for Floats {
    fn fill(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let inputs = self.matrix.shape[2];
        let codes = self.matrix.codes.bytes(first * inputs, bytes.len() / 2)?;
        let mut last: Option<(usize, Vec<f32>)> = None;
        for (row, (to, codes)) in
            bytes.chunks_exact_mut(2 * inputs).zip(codes.chunks_exact(inputs)).enumerate()
        {
            let block = self.blocks.row(first + row);
            if last.as_ref().is_none_or(|(known, _)| *known != block) {
                last = Some((block, self.matrix.scales_of(first + row, self.blocks)?));
            }
            let scales = last.iter().flat_map(|(_, scales)| scales);
            let side = self.blocks.sides[1];
            for ((to, codes), scale) in to.chunks_mut(2 * side).zip(codes.chunks(side)).zip(scales) {
                for (to, code) in to.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *to = bf16::from_f32(self.table[usize::from(*code)] * scale).to_le_bytes();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_its_exponent_times_a_factor() {
        for scale in [1.0_f32, 0.5, 3.75, 0.000_123, 1e30, -0.7, f32::MIN_POSITIVE, f32::MAX] {
            let (exponent, factor) = split(scale);
            let product = 2_f32.powi(i32::from(exponent) - ONE) * factor;
            assert_eq!(product.to_bits(), scale.to_bits());
            assert!((1.0..4.0).contains(&factor.abs()), "{scale}: {factor}");
        }
        for scale in [0.0, f32::INFINITY, 1e-40] {
            assert_eq!(split(scale), (127, scale));
        }
    }
}
