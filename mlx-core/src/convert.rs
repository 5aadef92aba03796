//! Converts a model folder: quantizes matrices, casts floats, fuses an adapter, splits files. Invariant: only part of one tensor is in memory
//! at a time, or one tensor that an adapter changes. The result equals that of mlx-lm, with a vision tower as mlx-vlm writes it.

mod adapt;
mod change;
mod multipliers;
mod options;
mod output;
mod plan;
mod quality;
mod rule;
mod settings;
mod shards;
mod stacks;
mod tower;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

pub use options::{ConvertOptions, EmbeddingBits};
pub use quality::Quality;
pub use rule::Rule;

use crate::adapter::{Adapter, Change, Factor};
use crate::array;
use crate::config::Fields;
use crate::error::{Error, Result};
use crate::folder::expect_folder;
use crate::model::InFiles;
use crate::quantization::{QuantScheme, QuantizationConfig, QuantizedMatrix};
use crate::weights::{Checkpoint, Entry, FloatPolicy, WeightPolicy};
use multipliers::Multipliers;
use output::Output;
use plan::{OutputTensor, PlannedChange};
use shards::{Shard, ShardFile};

/// The number of values converted at once.
const CHUNK: usize = 4 << 20;

/// The result of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The number of matrices and stacks of matrices that were quantized.
    pub quantized: usize,
    /// Matrices that were not quantized, because their row length is not a multiple of the group size or because of a rule.
    pub skipped: Vec<String>,
    /// Parts of the model that were dropped because nothing here can use them, such as `audio_tower`.
    pub left_out: Vec<String>,
    /// The scheme of the embedding and the head, if it differs from that of other matrices and no rule sets it.
    pub embedding: Option<QuantScheme>,
    /// The number of weight files written.
    pub shards: usize,
    /// The number of parameters before quantization.
    pub parameters: u64,
    /// The bytes of these parameters in the source files.
    pub bytes_before: u64,
    /// The bytes of the tensors written.
    pub bytes_after: u64,
}

/// A callback with the bytes converted so far and the total. It returns whether to continue.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Converts the model in `source` into the folder `target`. Returns `None` if `progress` stopped it. A stopped or failed conversion
/// leaves no files.
pub fn convert(
    source: &Path,
    target: &Path,
    options: &ConvertOptions,
    progress: Progress,
) -> Result<Option<Report>> {
    expect_folder(source)?;
    let mut config = read_config(source, options)?;
    let Planned { mut checkpoint, adapter, units, embedding, unused, renamed } = planned(source, options)?;
    settings::rename_modules(&mut config, &renamed);
    let config = settings::changed(config, &units, options.scheme, options.dtype, &unused);
    let report = Report {
        quantized: units.iter().filter(|unit| unit.scheme.is_some()).count(),
        skipped: skipped(&units, options),
        left_out: unused.into_iter().map(str::to_owned).collect(),
        embedding,
        shards: 0,
        parameters: units.iter().map(OutputTensor::numbers).sum(),
        bytes_before: units.iter().map(OutputTensor::bytes_before).sum(),
        bytes_after: units.iter().map(OutputTensor::bytes).sum(),
    };
    let total = units.iter().flat_map(|unit| &unit.sources).map(|entry| entry.length as u64).sum();
    let shards = shards::split(units, options.shard_bytes);
    let output = Output::new(source, target, options.force)?;
    output.expect_no_other_weights(&shards.iter().map(|shard| shard.name.as_str()).collect::<Vec<_>>())?;
    output.copy_other_files(source)?;
    let mut conversion = Conversion { checkpoint: &mut checkpoint, adapter, done: 0, total, progress };
    for shard in &shards {
        if conversion.write(output.folder(), shard)?.is_break() {
            return Ok(None);
        }
    }
    output.write_json(shards::INDEX, &shards::index(&shards))?;
    output.write_json("config.json", &config)?;
    output.finish()?;
    Ok(Some(Report { shards: shards.len(), ..report }))
}

/// A model in files with the plan of its conversion.
struct Planned {
    checkpoint: Checkpoint,
    /// The adapter that changes its tensors, if there is one.
    adapter: Option<Adapter>,
    units: Vec<OutputTensor>,
    /// See [`Report::embedding`].
    embedding: Option<QuantScheme>,
    /// The parts that are dropped.
    unused: BTreeSet<&'static str>,
    /// The modules that are quantized in the files, with mlx-lm's names, if these differ.
    renamed: BTreeMap<String, String>,
}

fn planned(source: &Path, options: &ConvertOptions) -> Result<Planned> {
    // No weights are loaded, so the device's policy does not matter.
    let policy = WeightPolicy::for_device(true)?.with_floats(Some(FloatPolicy::Checkpoint));
    let InFiles { family, config, mut checkpoint, tower, tables, unused, quantization } =
        InFiles::read(source, policy)?;
    let path = source.join("config.json");
    if QuantizationConfig::read(&Fields::read(&path)?)?.is_rewritten() && !quantization.is_empty() {
        let message =
            "quantization is in a format that cannot be converted; convert the original model instead";
        return Err(Error::file(path, message));
    }
    let is_foreign =
        |name: &&String| ["row_scales", "signs", "input_order"].iter().any(|end| name.ends_with(end));
    if let Some(name) = checkpoint.entries().keys().find(is_foreign) {
        let message =
            format!("tensor {name} has no place in MLX's format; convert the original model instead");
        return Err(Error::file(checkpoint.main_file(), message));
    }
    let mut adapter = options.adapter.as_deref().map(Adapter::open).transpose()?;
    if let Some(adapter) = &mut adapter {
        adapter.check_layers(config.layers.len())?;
        adapter.replace(&mut checkpoint)?;
    }
    expect_numbers(&checkpoint, &tower)?;
    let mut units = plan::plan(&checkpoint, (&family, &config), options)?;
    if let Some(adapter) = &mut adapter {
        change::assign(&mut units, adapter, &quantization, options)?;
        adapter.expect_taken()?;
    }
    units.extend(tower::plan(tower, options));
    let tables = tables.map(|table| plan::module_name(&table, (&family, &config)));
    let embedding = plan::quantize(&mut units, &checkpoint, (&family, &tables), options)?;
    let packed = checkpoint.entries().keys().filter_map(|name| name.strip_suffix(".scales"));
    let names = packed.map(|module| (module.to_owned(), plan::module_name(module, (&family, &config))));
    let renamed = names.filter(|(module, name)| module != name).collect();
    Ok(Planned { checkpoint, adapter, units, embedding, unused, renamed })
}

/// Fails if a tensor is empty.
fn expect_numbers(checkpoint: &Checkpoint, tower: &BTreeMap<String, Entry>) -> Result<()> {
    match checkpoint.entries().iter().chain(tower).find(|(_, entry)| entry.shape.contains(&0)) {
        None => Ok(()),
        Some((name, entry)) => {
            Err(checkpoint.error(entry, format!("tensor {name} has shape {:?} and is empty", entry.shape)))
        }
    }
}

/// Returns true if the model in `source` is quantized in MLX's packing. Weights of other tools are read as floats.
pub fn is_quantized(source: &Path) -> Result<bool> {
    let fields = Fields::read(&source.join("config.json"))?;
    let quantization = QuantizationConfig::read(&fields)?;
    // gpt-oss was published quantized, without a `quantization` entry.
    let has_entry = !quantization.is_empty() || fields.has("quantization_config");
    Ok(quantization.foreign().is_none() && has_entry)
}

/// Reads config.json and checks that it allows this conversion.
fn read_config(source: &Path, options: &ConvertOptions) -> Result<serde_json::Map<String, Value>> {
    let path = source.join("config.json");
    if options.scheme.is_some() && is_quantized(source)? {
        let message = "quantization says that this model is already quantized; convert the original model instead, or set only dtype to cast its floats";
        return Err(Error::file(path, message));
    }
    let mut config = mlx_files::object(&path, &mlx_files::bytes(&path)?)?;
    if QuantizationConfig::read(&Fields::read(&path)?)?.foreign().is_some() {
        settings::drop_foreign(&mut config);
    }
    Ok(config)
}

/// Lists the decoder's matrices that remain floats although others are quantized.
fn skipped(units: &[OutputTensor], options: &ConvertOptions) -> Vec<String> {
    let floats =
        units.iter().filter(|unit| options.scheme.is_some() && unit.scheme.is_none() && !unit.is_tower);
    floats.filter_map(plan::module).map(str::to_owned).collect()
}

/// A conversion in progress.
struct Conversion<'a, 'p> {
    checkpoint: &'a mut Checkpoint,
    adapter: Option<Adapter>,
    /// The number of bytes read so far.
    done: u64,
    total: u64,
    progress: Progress<'p>,
}

impl Conversion<'_, '_> {
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

    /// Reads, converts and writes a unit, a few rows at a time.
    fn write_unit(&mut self, file: &mut ShardFile, unit: &OutputTensor) -> Result<ControlFlow<()>> {
        let tensors = unit.tensors();
        if let Some(change) = &unit.change {
            for (tensor, bytes) in tensors.iter().zip(self.changed(unit, change)?) {
                file.write(&tensor.name, 0, &bytes)?;
            }
            self.done += unit.sources.iter().map(|entry| entry.length as u64).sum::<u64>();
            return Ok((self.progress)(self.done, self.total));
        }
        let mut written = vec![0; tensors.len()];
        for source in &unit.sources {
            let row = unit.inputs() * source.dtype.bitsize() / 8;
            let whole = unit.columns.is_some() || unit.colors_last;
            let step = if whole { source.length } else { row * (CHUNK / unit.inputs()).max(1) };
            for begin in (0..source.length).step_by(step.max(1)) {
                let end = source.length.min(begin + step);
                let bytes = self.checkpoint.read_part(source, begin..end)?;
                let parts = convert_rows(bytes, source.dtype, unit, begin / row)?;
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

impl Conversion<'_, '_> {
    /// Returns the bytes of each tensor of a unit that an adapter changes. The change needs the whole matrix.
    fn changed(&mut self, unit: &OutputTensor, planned: &PlannedChange) -> Result<Vec<Vec<u8>>> {
        let sources = unit.sources.iter().map(|entry| self.checkpoint.read_part(entry, 0..entry.length));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let shape: Vec<i32> = unit.shape.iter().map(|&size| size as i32).collect();
        let parts = unit.sources.iter().zip(sources);
        let weight = match planned.packed {
            None => {
                let floats = OutputTensor { scheme: None, dtype: planned.from, change: None, ..unit.clone() };
                let rows =
                    parts.map(|(entry, bytes)| Ok(convert_rows(bytes, entry.dtype, &floats, 0)?.concat()));
                let bytes = rows.collect::<Result<Vec<_>>>()?.concat();
                array::floats(&bytes, planned.from, planned.from, &shape)?
            }
            Some(scheme) => {
                let parts = parts.map(|(entry, bytes)| array::of_file(&bytes, entry.dtype, &entry.shape));
                let mut parts = parts.collect::<Result<Vec<_>>>()?.into_iter();
                let (Some(words), Some(scales)) = (parts.next(), parts.next()) else {
                    return Err(Error::Array(format!("{} has no scales", unit.name)));
                };
                let matrix = QuantizedMatrix::new(scheme, words, scales, parts.next());
                matrix.dequantize_on_device(array::known_float(planned.from)?)?
            }
        };
        let Some(adapter) = &mut self.adapter else {
            return Err(Error::Array("a change has no adapter".into()));
        };
        let scale = adapter.scale();
        let mut factor = |factor: &Factor| adapter.array(factor);
        let change = Change {
            target: planned.target,
            first: factor(&planned.factors.first)?,
            second: factor(&planned.factors.second)?,
            scale,
            magnitude: planned.factors.magnitude.as_ref().map(factor).transpose()?,
        };
        let floats = change.fused(&weight)?.as_dtype(array::known_float(unit.dtype)?)?;
        match unit.scheme {
            Some(scheme) => QuantizedMatrix::quantize(&floats, scheme)?.to_bytes(),
            None => Ok(vec![array::to_bytes(&floats)?.1]),
        }
    }
}

/// Converts rows of a unit, starting with row `first`, from type `from` to the bytes of each of its tensors.
fn convert_rows(bytes: Vec<u8>, from: Dtype, unit: &OutputTensor, first: usize) -> Result<Vec<Vec<u8>>> {
    let moves = unit.columns.is_some() || unit.colors_last;
    let stays = !unit.adds_one && !moves && unit.multipliers.is_none();
    if unit.scheme.is_none() && from == unit.dtype && stays {
        return Ok(vec![bytes]);
    }
    let inputs = unit.inputs();
    if unit.colors_last {
        let (outputs, pixels) = (unit.shape[0], bytes.len() * 8 / from.bitsize() / inputs / unit.shape[0]);
        let shape = [outputs, inputs, pixels].map(|size| size as i32);
        let kernels = array::floats(&bytes, from, unit.dtype, &shape)?;
        return Ok(vec![array::to_bytes(&kernels.swap_axes(1, 2)?.contiguous()?)?.1]);
    }
    let rows = bytes.len() * 8 / from.bitsize() / inputs;
    let shape = [rows as i32, inputs as i32];
    let floats = match (&unit.columns, &unit.multipliers) {
        (Some(columns), _) => {
            let matrix = array::floats(&bytes, from, unit.dtype, &[shape[1], shape[0]])?;
            let columns = array::slice_axis(&matrix, 1, columns.start as i32, columns.end as i32)?;
            columns.swap_axes(0, 1)?.contiguous()?
        }
        (None, Some(Multipliers { factor, by_row })) => {
            let by_row = if by_row.is_empty() { &[] } else { &by_row[first..first + rows] };
            array::times(&bytes, [from, unit.dtype], &shape, *factor, by_row)?
        }
        (None, None) if unit.adds_one => array::plus_one(&bytes, from, unit.dtype, &shape)?,
        (None, None) => array::floats(&bytes, from, unit.dtype, &shape)?,
    };
    match unit.scheme {
        Some(scheme) => QuantizedMatrix::quantize(&floats, scheme)?.to_bytes(),
        None => Ok(vec![array::to_bytes(&floats)?.1]),
    }
}
