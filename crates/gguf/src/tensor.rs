//! The tensors of the model folder, read lazily from stored blocks.

mod change;
mod read;

use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::file::{GgufFile, StoredTensor};
use crate::packing::{Conversion, Packing, Part, ScaleType};
use crate::placement::{Change, ColumnOrder, Placement, RowOrder};
use crate::tensor_type::TensorType;

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
    pub(crate) fn bytes(self) -> usize {
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
    columns: ColumnOrder,
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
    let width = row_elements(stored, placement.rows);
    let stored_rows = stored.elements() / width.max(1);
    let rows = placement.rows.count(stored_rows);
    if let (None, RowOrder::Halves { head_dim }) = (rows, placement.rows) {
        let message = format!("has {stored_rows} rows, which are not heads of {head_dim} rows");
        return Err(file.error(stored, message));
    }
    let elements = rows.and_then(|rows| rows.checked_mul(width));
    let needed = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    if elements.is_none() || elements != needed || !placement.columns.fits(width) {
        let message = format!("has the shape {:?}, but {} needs {shape:?}", stored.shape, placement.name);
        return Err(file.error(stored, message));
    }
    let Some(conversion) = Conversion::of(stored.kind) else { return Ok(()) };
    let fault = match placement.columns {
        _ if placement.change != Change::Same => "; it must be a tensor of floats".to_owned(),
        _ if shape.last() != Some(&width) => {
            format!(" in rows of {width}; it cannot have the shape {shape:?}")
        }
        ColumnOrder::Tiled { heads } if !heads.size.is_multiple_of(conversion.packing.group_size.max(32)) => {
            format!(
                " in groups of {}, which heads of {} columns cut",
                conversion.packing.group_size, heads.size
            )
        }
        _ if !placement.name.ends_with(WEIGHT) => {
            format!(", but {} must be a tensor of floats", placement.name)
        }
        _ => return Ok(()),
    };
    Err(file.error(stored, format!("is {}{fault}", stored.kind)))
}

/// Returns the number of elements of a row. A number of a vector is a row, if the order of rows changes.
fn row_elements(stored: &StoredTensor, order: RowOrder) -> usize {
    match stored.shape.as_slice() {
        [_] if order != RowOrder::Same => 1,
        shape => shape.last().copied().unwrap_or(1),
    }
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
        columns: placement.columns,
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
            columns: placement.columns,
            content: Content::Part(*part, conversion),
        }
    })
}

impl Tensor {
    /// The file that the tensor is read from.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

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

    /// The name of the type in the file, such as `Q4_K`, if the tensor is a part of a quantized matrix.
    pub fn quantization(&self) -> Option<&'static str> {
        matches!(self.content, Content::Part(..)).then(|| self.stored.kind.name())
    }

    /// The number of bytes in the file. The codes of a quantized matrix count all of its blocks, its scales and biases nothing.
    pub fn stored_bytes(&self) -> u64 {
        match self.content {
            Content::Part(Part::Scales | Part::Biases, _) => 0,
            _ => self.stored.length,
        }
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bytes()) as u64
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
                    change::change_floats(change, self.dtype, out);
                }
            }
        }
    }
}
