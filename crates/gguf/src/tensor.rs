//! The tensors of the model folder, read lazily from stored blocks.

use std::sync::Arc;

use half::{bf16, f16};

use crate::error::Result;
use crate::file::{GgufFile, StoredTensor};
use crate::packing::{Conversion, Packing, Part, ScaleType};
use crate::placement::{Change, Placement, RowOrder};
use crate::tensor_type::TensorType;

/// Stored bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// The end of the name of a matrix.
const WEIGHT: &str = ".weight";

/// The type of the elements of a tensor of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of f32.
    BF16,
    /// 32-bit words of packed codes.
    U32,
    /// Bytes.
    U8,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 => 1,
        }
    }
}

/// A tensor of the model folder.
#[derive(Debug, Clone)]
pub struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    file: Arc<GgufFile>,
    stored: StoredTensor,
    rows: RowOrder,
    content: Content,
}

/// The relation of a tensor's bytes to stored blocks.
#[derive(Debug, Clone, Copy)]
enum Content {
    Floats(Change),
    Part(Part, Conversion),
}

/// Returns the tensors of the folder for stored tensors, each by its index in [`GgufFile::tensors`] and with its placement. A quantized tensor becomes two
/// or three tensors.
pub fn tensors(file: &Arc<GgufFile>, placements: Vec<(usize, Placement)>) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for (index, placement) in placements {
        let stored = &file.tensors()[index];
        check(file, stored, &placement)?;
        match Conversion::of(stored.kind) {
            Some(conversion) => tensors.extend(parts(file, stored, &placement, conversion)),
            None => tensors.push(floats(file, stored, placement)?),
        }
    }
    Ok(tensors)
}

/// Returns the packing of each quantized module: the name of the tensor without `.weight`.
pub fn packings(file: &GgufFile, placements: &[(usize, Placement)]) -> Vec<(String, Packing)> {
    let packing = |(index, placement): &(usize, Placement)| {
        let conversion = Conversion::of(file.tensors()[*index].kind)?;
        Some((placement.name.strip_suffix(WEIGHT)?.to_owned(), conversion.packing))
    };
    placements.iter().filter_map(packing).collect()
}

/// Checks that a placement fits its stored tensor.
fn check(file: &GgufFile, stored: &StoredTensor, placement: &Placement) -> Result<()> {
    let shape = placement.shape.as_ref().unwrap_or(&stored.shape);
    if shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size)) != Some(stored.elements()) {
        return Err(file.error(
            stored,
            format!("has the shape {:?}, but {} needs {shape:?}", stored.shape, placement.name),
        ));
    }
    if let RowOrder::Halves { head_dim } = placement.rows {
        let rows = stored.elements() / row_elements(stored);
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !rows.is_multiple_of(head_dim) {
            return Err(
                file.error(stored, format!("has {rows} rows, which are not heads of {head_dim} rows"))
            );
        }
    }
    if Conversion::of(stored.kind).is_none() {
        return Ok(());
    }
    if placement.change != Change::Same {
        return Err(file.error(stored, format!("is {}; it must be a tensor of floats", stored.kind)));
    }
    if shape.last() != stored.shape.last() {
        return Err(file.error(
            stored,
            format!(
                "is {} in rows of {}; it cannot have the shape {shape:?}",
                stored.kind,
                row_elements(stored)
            ),
        ));
    }
    if !placement.name.ends_with(WEIGHT) {
        return Err(file.error(
            stored,
            format!("is {}, but {} must be a tensor of floats", stored.kind, placement.name),
        ));
    }
    Ok(())
}

fn row_elements(stored: &StoredTensor) -> usize {
    stored.shape.last().copied().unwrap_or(1)
}

fn floats(file: &Arc<GgufFile>, stored: &StoredTensor, placement: Placement) -> Result<Tensor> {
    let dtype = match stored.kind {
        TensorType::F32 => Dtype::F32,
        TensorType::F16 => Dtype::F16,
        TensorType::BF16 => Dtype::BF16,
        kind => {
            return Err(file.error(
                stored,
                format!(
                    "is {kind}, a type that MLX cannot hold; use another quantization of this model, such as Q4_K_M or Q8_0"
                ),
            ));
        }
    };
    Ok(Tensor {
        name: placement.name,
        dtype,
        shape: placement.shape.unwrap_or_else(|| stored.shape.clone()),
        file: Arc::clone(file),
        stored: stored.clone(),
        rows: placement.rows,
        content: Content::Floats(placement.change),
    })
}

fn parts(
    file: &Arc<GgufFile>,
    stored: &StoredTensor,
    placement: &Placement,
    conversion: Conversion,
) -> impl Iterator<Item = Tensor> {
    let packing = conversion.packing;
    packing.parts().iter().map(move |part| {
        let module = placement.name.strip_suffix(WEIGHT).unwrap_or(&placement.name);
        let (suffix, dtype) = match (part, packing.scales) {
            (Part::Weight, _) => ("weight", Dtype::U32),
            (Part::Scales, ScaleType::U8) => ("scales", Dtype::U8),
            (Part::Scales, ScaleType::F16) => ("scales", Dtype::F16),
            (Part::Scales, ScaleType::F32) => ("scales", Dtype::F32),
            (Part::Biases, ScaleType::F32) => ("biases", Dtype::F32),
            (Part::Biases, _) => ("biases", Dtype::F16),
        };
        let mut shape = placement.shape.clone().unwrap_or_else(|| stored.shape.clone());
        if let Some(last) = shape.last_mut() {
            *last = *last / stored.kind.block_elements() * conversion.block_bytes(*part) / dtype.bytes();
        }
        Tensor {
            name: format!("{module}.{suffix}"),
            dtype,
            shape,
            file: Arc::clone(file),
            stored: stored.clone(),
            rows: placement.rows,
            content: Content::Part(*part, conversion),
        }
    })
}

impl Tensor {
    /// The name in the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The shape, outermost axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks() * self.unit() as u64
    }

    /// Computes bytes of the tensor from byte `place` of it. Several threads may read at the same time.
    pub fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        let end = place.checked_add(bytes.len() as u64).filter(|end| *end <= self.bytes());
        let Some(end) = end else {
            return Err(self.file.error(
                &self.stored,
                format!("gives {} bytes of {}; a read would end after them", self.bytes(), self.name),
            ));
        };
        if bytes.is_empty() {
            return Ok(());
        }
        let unit = self.unit();
        let mut window = Window::new(self, end.div_ceil(unit as u64));
        let mut edge = vec![0; unit];
        let (mut block, mut skipped) = (place / unit as u64, (place % unit as u64) as usize);
        let mut rest = bytes;
        while !rest.is_empty() {
            let blocks = window.blocks(block)?;
            let stored = self.stored.kind.block_bytes();
            if skipped > 0 || rest.len() < unit {
                self.convert(&blocks[..stored], &mut edge);
                let count = rest.len().min(unit - skipped);
                let (out, after) = rest.split_at_mut(count);
                out.copy_from_slice(&edge[skipped..skipped + count]);
                (rest, skipped, block) = (after, 0, block + 1);
            } else {
                let count = (blocks.len() / stored).min(rest.len() / unit);
                let (out, after) = rest.split_at_mut(count * unit);
                self.convert(&blocks[..count * stored], out);
                (rest, block) = (after, block + count as u64);
            }
        }
        Ok(())
    }

    /// The number of stored blocks.
    fn blocks(&self) -> u64 {
        self.stored.length / self.stored.kind.block_bytes() as u64
    }

    /// Bytes of the tensor that a stored block gives.
    fn unit(&self) -> usize {
        match self.content {
            Content::Floats(_) => self.dtype.bytes(),
            Content::Part(part, conversion) => conversion.block_bytes(part),
        }
    }

    /// Converts whole blocks.
    fn convert(&self, blocks: &[u8], out: &mut [u8]) {
        match self.content {
            Content::Part(part, conversion) => conversion.convert(part, blocks, out),
            Content::Floats(change) => {
                out.copy_from_slice(blocks);
                if change != Change::Same {
                    change_floats(change, self.dtype, out);
                }
            }
        }
    }
}

/// Changes each float.
fn change_floats(change: Change, dtype: Dtype, bytes: &mut [u8]) {
    let changed = |number: f32| match change {
        Change::Same => number,
        Change::MinusOne => number - 1.0,
        Change::LogOfNegative => (-number).ln(),
    };
    match dtype {
        Dtype::F16 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| {
            *bytes = f16::from_f32(changed(f16::from_le_bytes(*bytes).to_f32())).to_le_bytes();
        }),
        Dtype::BF16 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| {
            *bytes = bf16::from_f32(changed(bf16::from_le_bytes(*bytes).to_f32())).to_le_bytes();
        }),
        _ => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| {
            *bytes = changed(f32::from_le_bytes(*bytes)).to_le_bytes();
        }),
    }
}

/// Stored blocks in memory, at most [`BUFFER`] bytes.
struct Window<'a> {
    tensor: &'a Tensor,
    /// The block after the last that the reader needs, in the order of the folder.
    end: u64,
    /// Blocks of a row.
    row: u64,
    /// Rows whose order changes among each other, if they fit into the buffer together.
    group: u64,
    /// The first block in memory, in stored order.
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(tensor: &'a Tensor, end: u64) -> Self {
        let row = (row_elements(&tensor.stored) / tensor.stored.kind.block_elements()) as u64;
        let size = row * tensor.stored.kind.block_bytes() as u64;
        let group = match tensor.rows {
            RowOrder::Halves { head_dim } if size.saturating_mul(head_dim as u64) <= BUFFER as u64 => {
                head_dim as u64
            }
            _ => 1,
        };
        Self { tensor, end, row, group, start: 0, buffer: Vec::new() }
    }

    /// Returns stored blocks from `block` on that follow each other in the folder too. `block` counts in the order of the folder.
    fn blocks(&mut self, block: u64) -> Result<&[u8]> {
        let size = self.tensor.stored.kind.block_bytes() as u64;
        let (stored, run) = match self.tensor.rows {
            RowOrder::Same => (block, self.end - block),
            RowOrder::Halves { head_dim } => {
                let column = block % self.row;
                let run = (self.row - column).min(self.end - block);
                (stored_row(block / self.row, head_dim as u64) * self.row + column, run)
            }
        };
        let held = self.buffer.len() as u64 / size;
        if stored < self.start || stored >= self.start + held {
            self.load(block, stored, run)?;
        }
        let first = (stored - self.start) * size;
        let last = (first + run * size).min(self.buffer.len() as u64);
        Ok(&self.buffer[first as usize..last as usize])
    }

    /// Reads blocks into the buffer: as many groups of rows as fit, or a part of a row.
    fn load(&mut self, block: u64, stored: u64, run: u64) -> Result<()> {
        let size = self.tensor.stored.kind.block_bytes() as u64;
        let most = (BUFFER as u64 / size).max(1);
        let count = if self.group > 1 {
            let group = self.group * self.row;
            self.start = block / group * group;
            let needed = (self.end - self.start).div_ceil(group);
            needed.min(most / group) * group
        } else {
            self.start = stored;
            run.min(most)
        };
        self.buffer.resize((count * size) as usize, 0);
        let read = self.tensor.file.read(&self.tensor.stored, self.start * size, &mut self.buffer);
        if read.is_err() {
            self.buffer.clear();
        }
        read
    }
}

/// Returns the stored row of a row of the folder: two halves of a head alternate in the file.
fn stored_row(row: u64, head_dim: u64) -> u64 {
    let (head, row) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (row % half) + row / half
}
