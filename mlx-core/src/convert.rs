//! Converts a model folder: quantizes its matrices, casts its floats, splits its files. Invariant: a part of one tensor is in memory at a time,
//! and the result is what mlx-lm writes and reads.

mod output;
mod plan;
mod rule;
mod settings;
mod shards;

use std::ops::ControlFlow;
use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

pub use rule::Rule;

use crate::array;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::folder::expect_folder;
use crate::model;
use crate::quantization::QuantizedMatrix;
use crate::quantization::{QuantScheme, QuantizationConfig};
use crate::weights::{Checkpoint, FloatPolicy, WeightPolicy};
use output::Output;
use plan::Unit;
use shards::{Shard, ShardFile};

/// The numbers that are converted at once.
const AT_ONCE: usize = 4 << 20;

/// What to make of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertOptions {
    /// How matrices are packed; if none, they stay as they are.
    pub packing: Option<QuantScheme>,
    /// Modules that are packed in other ways, or not at all; the first that matches decides.
    pub rules: Vec<Rule>,
    /// The type of what stays, or is, floats; if none, they keep theirs.
    pub dtype: Option<Dtype>,
    /// The most bytes of tensors in a file.
    pub shard_bytes: u64,
    /// Whether to write into a folder that has something in it.
    pub force: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Matrices, and stacks of them, that were packed.
    pub packed: usize,
    /// Matrices that were not, because their rows are no whole groups or a rule says so.
    pub left: Vec<String>,
    /// Files of weights.
    pub shards: usize,
    /// Numbers, as they are before packing.
    pub parameters: u64,
    /// Bytes of the tensors that were read.
    pub bytes_before: u64,
    /// Bytes of those that were written.
    pub bytes_after: u64,
}

/// Called with the bytes done so far and the bytes in all; says whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Converts the model in `source` into the folder `target`. If `progress` ends it, or anything fails, there is no trace of it; then, in the
/// first case, the result is none.
pub fn convert(
    source: &Path,
    target: &Path,
    options: &ConvertOptions,
    progress: Progress,
) -> Result<Option<Report>> {
    expect_folder(source)?;
    let config = read_config(source, options)?;
    // Nothing is loaded; how the device would hold the weights does not matter.
    let policy = WeightPolicy { floats: FloatPolicy::Checkpoint, keep_packed: true };
    let (family, mut checkpoint) = model::tensors(source, policy)?;
    let units = plan::plan(&checkpoint, &family, options)?;
    let config = settings::changed(config, &units, options.packing, options.dtype);
    let report = Report {
        packed: units.iter().filter(|unit| unit.packing.is_some()).count(),
        left: left(&units, options),
        shards: 0,
        parameters: units.iter().map(Unit::numbers).sum(),
        bytes_before: units.iter().flat_map(|unit| &unit.sources).map(|entry| entry.length as u64).sum(),
        bytes_after: units.iter().map(Unit::bytes).sum(),
    };
    let shards = shards::split(units, options.shard_bytes);
    let output = Output::new(source, target, options.force)?;
    output.expect_no_other_weights(&shards.iter().map(|shard| shard.name.as_str()).collect::<Vec<_>>())?;
    output.copy_the_rest(source)?;
    let mut work = Work { checkpoint: &mut checkpoint, done: 0, total: report.bytes_before, progress };
    for shard in &shards {
        if work.write(output.folder(), shard)?.is_break() {
            return Ok(None);
        }
    }
    output.write_json(shards::INDEX, &shards::index(&shards))?;
    output.write_json("config.json", &config)?;
    output.finish()?;
    Ok(Some(Report { shards: shards.len(), ..report }))
}

/// config.json, if these options can be met.
fn read_config(source: &Path, options: &ConvertOptions) -> Result<serde_json::Map<String, Value>> {
    let path = source.join("config.json");
    let fields = Fields::read(&path)?;
    // gpt-oss as it was published has blocks that no recipe speaks of.
    let quantized = !QuantizationConfig::read(&fields)?.is_empty() || fields.has("quantization_config");
    if options.packing.is_some() && quantized {
        let message = "quantization says that this model is quantized already; quantize the one that it was made from, or give --dtype alone to cast its floats";
        return Err(Error::file(path, message));
    }
    let bytes = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::file(path, format!("is not valid JSON: {error}")))
}

/// The matrices that are not packed though the others are.
fn left(units: &[Unit], options: &ConvertOptions) -> Vec<String> {
    let floats = units.iter().filter(|unit| options.packing.is_some() && unit.packing.is_none());
    floats.filter_map(plan::module).map(str::to_owned).collect()
}

/// A conversion under way.
struct Work<'a, 'p> {
    checkpoint: &'a mut Checkpoint,
    /// Bytes that were read.
    done: u64,
    total: u64,
    progress: Progress<'p>,
}

impl Work<'_, '_> {
    fn write(&mut self, folder: &Path, shard: &Shard) -> Result<ControlFlow<()>> {
        let mut file = ShardFile::create(folder, shard)?;
        for unit in &shard.units {
            if self.write_unit(&mut file, unit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        file.finish()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Reads some rows, converts them, writes them to where they belong, and goes on.
    fn write_unit(&mut self, file: &mut ShardFile, unit: &Unit) -> Result<ControlFlow<()>> {
        let tensors = unit.tensors();
        let mut written = vec![0; tensors.len()];
        for source in &unit.sources {
            let row = unit.inputs() * source.dtype.bitsize() / 8;
            let step = row * (AT_ONCE / unit.inputs()).max(1);
            for begin in (0..source.length).step_by(step.max(1)) {
                let end = source.length.min(begin + step);
                let bytes = self.checkpoint.read_part(source, begin..end)?;
                let parts = convert_rows(bytes, source.dtype, unit)?;
                for ((tensor, bytes), written) in tensors.iter().zip(&parts).zip(&mut written) {
                    file.write(&tensor.name, *written, bytes)?;
                    *written += bytes.len() as u64;
                }
                self.done += (end - begin) as u64;
                if (self.progress)(self.done, self.total).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Rows of a unit, from the type `from`, as the bytes of each of its tensors.
fn convert_rows(bytes: Vec<u8>, from: Dtype, unit: &Unit) -> Result<Vec<Vec<u8>>> {
    if unit.packing.is_none() && from == unit.dtype {
        return Ok(vec![bytes]);
    }
    let inputs = unit.inputs();
    let rows = bytes.len() * 8 / from.bitsize() / inputs;
    let floats = array::floats(&bytes, from, unit.dtype, &[rows as i32, inputs as i32])?;
    match unit.packing {
        Some(packing) => QuantizedMatrix::pack(&floats, packing)?.to_bytes(),
        None => Ok(vec![array::to_bytes(&floats)?.1]),
    }
}
