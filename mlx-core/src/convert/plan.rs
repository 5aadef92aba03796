//! Plans the conversion of each tensor of a checkpoint from the headers of its files. Invariant: pure; the result has mlx-lm's names and
//! shapes.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;

use super::adapt::Adaptation;
use super::multipliers::Multipliers;
use super::stacks::{Stack, Stacks};
use super::{ConvertOptions, Rule};
use crate::adapter::{Factors, Target};
use crate::array::float_dtype;
use crate::error::{Error, Result};
use crate::model::DecoderConfig;
use crate::quantization::QuantScheme;
use crate::weights::{Checkpoint, Entry};

/// One tensor, or one quantized matrix with its scales and biases.
#[derive(Debug, Clone)]
pub(super) struct OutputTensor {
    /// The name of the tensor, or of the quantized module.
    pub(super) name: String,
    /// The source tensors, in order.
    pub(super) sources: Vec<Entry>,
    /// `[..., output, input]`, before quantization.
    pub(super) shape: Vec<usize>,
    /// The type of its floats.
    pub(super) dtype: Dtype,
    /// True if 1 is added to its values.
    pub(super) adds_one: bool,
    /// Factors of its values.
    pub(super) multipliers: Option<Multipliers>,
    /// The columns that become rows, if each source is a matrix `[input, ...]`.
    pub(super) columns: Option<Range<usize>>,
    /// True if each source is `[outputs, colors, ...]` and the colors become the last axis.
    pub(super) colors_last: bool,
    /// True if it belongs to a vision or audio tower, which mlx-vlm does not quantize.
    pub(super) is_tower: bool,
    /// The quantization scheme.
    pub(super) scheme: Option<QuantScheme>,
    /// The adapter's change.
    pub(super) change: Option<PlannedChange>,
}

/// An adapter's change of a unit.
#[derive(Debug, Clone)]
pub(super) struct PlannedChange {
    pub(super) target: Target,
    pub(super) factors: Factors,
    /// The quantization scheme in the files. The sources are then words, scales and possibly biases.
    pub(super) packed: Option<QuantScheme>,
    /// The type of its floats in the files, or after dequantization.
    pub(super) from: Dtype,
}

/// A tensor of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

impl OutputTensor {
    /// The tensors to write: the tensor itself, or words, scales and biases.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let Some(scheme) = self.scheme else {
            return vec![Tensor { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone() }];
        };
        let tensor = |part: &str, dtype, width: usize| {
            let shape = [self.rows(), &[width]].concat();
            Tensor { name: format!("{}.{part}", self.name), dtype, shape }
        };
        let words = self.inputs() * scheme.bits / 32;
        let groups = self.inputs() / scheme.group_size;
        let weight = tensor("weight", Dtype::U32, words);
        if scheme.has_biases() {
            vec![weight, tensor("scales", self.dtype, groups), tensor("biases", self.dtype, groups)]
        } else {
            vec![weight, tensor("scales", Dtype::U8, groups)]
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// The number of values before quantization.
    pub(super) fn numbers(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    /// The bytes of these values in the files.
    pub(super) fn bytes_before(&self) -> u64 {
        let bits = self.sources.first().map_or(0, |source| source.dtype.bitsize());
        self.numbers() * bits as u64 / 8
    }

    fn rows(&self) -> &[usize] {
        self.shape.split_last().map_or(&[], |(_, rows)| rows)
    }

    /// The number of values in a row.
    pub(super) fn inputs(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Plans all tensors of a decoder of this family with this prepared config. [`quantize`] completes the plan.
pub(super) fn plan(
    checkpoint: &Checkpoint,
    (family, config): (&str, &DecoderConfig),
    options: &ConvertOptions,
) -> Result<Vec<OutputTensor>> {
    let adaptation = Adaptation::new(family, config);
    let mut units = Vec::new();
    let mut stacks: BTreeMap<String, BTreeMap<usize, Entry>> = BTreeMap::new();
    let are_multiplied = Multipliers::are_in(checkpoint.entries());
    let stacking = Stacks::new(family, config, checkpoint.entries());
    for (name, entry) in checkpoint.entries() {
        let apart = stacking.of(name, entry);
        if !apart.is_empty() {
            units.extend(apart.into_iter().map(|stack| stacked(stack, adaptation, options)));
            continue;
        }
        if let Some((stack, index)) = stacking.expert(name) {
            stacks.entry(stack).or_default().insert(index, entry.clone());
            continue;
        }
        let multipliers = if are_multiplied { None } else { Multipliers::of(config, name) };
        units.push(OutputTensor { multipliers, ..adapted(name, entry, adaptation, options) });
    }
    for (name, experts) in stacks {
        let first = experts.values().next().map(|entry| (entry.dtype, entry.shape.clone()));
        let (dtype, shape) = first.unwrap_or((Dtype::F32, Vec::new()));
        let complete = experts.keys().copied().eq(0..experts.len());
        if !complete || experts.values().any(|entry| entry.dtype != dtype || entry.shape != shape) {
            let message = format!("the experts of {name} are incomplete, or differ in shape or type");
            return Err(Error::file(checkpoint.main_file(), message));
        }
        let shape = [&[experts.len()], shape.as_slice()].concat();
        let stack = Stack { name, sources: experts.into_values().collect(), shape, columns: None };
        units.push(stacked(stack, adaptation, options));
    }
    Ok(units)
}

/// Returns mlx-lm's name of a module in the files of a model of this family with this prepared config.
pub(super) fn module_name(module: &str, (family, config): (&str, &DecoderConfig)) -> String {
    let name = Adaptation::new(family, config).name(&format!("{module}.weight"));
    name.strip_suffix(".weight").unwrap_or(&name).to_owned()
}

/// Sorts the units and assigns their schemes. `tables` are the modules of the embedding and the head. Returns the scheme of these two, if
/// it differs from that of the other matrices.
pub(super) fn quantize(
    units: &mut [OutputTensor],
    checkpoint: &Checkpoint,
    (family, tables): (&str, &[String; 2]),
    options: &ConvertOptions,
) -> Result<Option<QuantScheme>> {
    units.sort_by(|one, other| one.name.cmp(&other.name));
    let mut of_tables = None;
    if let Some(default) = options.scheme {
        let parameters = units.iter().filter(|unit| !unit.is_tower).map(OutputTensor::numbers).sum();
        let embedding = options.embedding_bits.scheme(parameters, default);
        let family_rules = Rule::of_family(family);
        let quantizer = Quantizer { default, rules: &options.rules, family_rules, tables, embedding };
        quantizer.assign(units)?;
        let is_table = |unit: &OutputTensor| tables.contains(&unit.name) && unit.scheme == Some(embedding);
        of_tables = Some(embedding).filter(|it| *it != default && units.iter().any(is_table));
        if units.iter().all(|unit| unit.scheme.is_none()) {
            let message = format!(
                "no matrix of this model has rows that are a multiple of the group size of {default}"
            );
            return Err(Error::file(checkpoint.main_file(), message));
        }
    }
    Ok(of_tables)
}

/// Plans a tensor that is only cast.
pub(super) fn plain(
    name: String,
    sources: Vec<Entry>,
    shape: Vec<usize>,
    options: &ConvertOptions,
) -> OutputTensor {
    let given = sources.first().map_or(Dtype::F32, |entry| entry.dtype);
    let dtype = options.dtype.filter(|_| float_dtype(given).is_some()).unwrap_or(given);
    OutputTensor {
        name,
        sources,
        shape,
        dtype,
        adds_one: false,
        multipliers: None,
        columns: None,
        colors_last: false,
        is_tower: false,
        scheme: None,
        change: None,
    }
}

/// Plans a stack of matrices.
fn stacked(stack: Stack, adaptation: Adaptation, options: &ConvertOptions) -> OutputTensor {
    let Stack { name, sources, shape, columns } = stack;
    OutputTensor { columns, ..plain(adaptation.name(&name), sources, shape, options) }
}

/// Plans a tensor in mlx-lm's form.
fn adapted(name: &str, entry: &Entry, adaptation: Adaptation, options: &ConvertOptions) -> OutputTensor {
    let shape = Adaptation::shape(name, &entry.shape);
    let unit = plain(adaptation.name(name), vec![entry.clone()], shape, options);
    let dtype = if adaptation.keeps_type(name) { entry.dtype } else { unit.dtype };
    OutputTensor { adds_one: adaptation.adds_one(name, &entry.shape), dtype, ..unit }
}

/// Assigns the scheme of each matrix.
struct Quantizer<'a> {
    default: QuantScheme,
    rules: &'a [Rule],
    /// The default rules of mlx-lm for this family.
    family_rules: Vec<Rule>,
    /// The modules of the embedding and the head, and their scheme.
    tables: &'a [String; 2],
    embedding: QuantScheme,
}

impl Quantizer<'_> {
    fn assign(&self, units: &mut [OutputTensor]) -> Result<()> {
        for unit in units.iter_mut() {
            let Some(module) = module(unit).map(str::to_owned) else { continue };
            unit.scheme = self.scheme(&module, unit)?;
            if unit.scheme.is_some() {
                unit.name = module;
            }
        }
        let applies = |rule: &Rule, unit: &OutputTensor| {
            let matches = rule.matches(&unit.name) || module(unit).is_some_and(|module| rule.matches(module));
            matches && (!unit.is_tower || rule.is_for_towers())
        };
        match self.rules.iter().find(|rule| !units.iter().any(|unit| applies(rule, unit))) {
            None => Ok(()),
            Some(rule) => {
                let some =
                    units.iter().rfind(|unit| unit.scheme.is_some()).map_or("", |unit| unit.name.as_str());
                let message = format!(
                    "{} matches no module of this model; modules have names such as {some}",
                    rule.text()
                );
                Err(Error::option("rule", message))
            }
        }
    }

    /// Returns the scheme of the unit of this module, if it is to be quantized.
    fn scheme(&self, module: &str, unit: &OutputTensor) -> Result<Option<QuantScheme>> {
        let inputs = unit.inputs();
        let mut rules = self.rules.iter().filter(|rule| !unit.is_tower || rule.is_for_towers());
        if let Some(rule) = rules.find(|rule| rule.matches(module)) {
            let scheme = rule.scheme(self.default);
            return match scheme.filter(|scheme| scheme.words(inputs).is_none()) {
                None => Ok(scheme),
                Some(scheme) => {
                    let message = format!(
                        "{} does not fit: {module} has rows of {inputs} numbers, which is not a multiple of the group size of {scheme}",
                        rule.text()
                    );
                    Err(Error::option("rule", message))
                }
            };
        }
        if unit.is_tower {
            return Ok(None);
        }
        let family_rule = self.family_rules.iter().find(|rule| rule.matches(module));
        let of_family = family_rule.map(|rule| rule.scheme(self.default));
        if of_family == Some(None) {
            return Ok(None);
        }
        let of_table = self.tables.iter().any(|table| table == module).then_some(self.embedding);
        Ok(of_table
            .filter(|scheme| *scheme != self.default)
            .into_iter()
            .chain(of_family.flatten())
            .chain([self.default])
            .find(|scheme| scheme.words(inputs).is_some()))
    }
}

/// Returns the module of a unit, if it is a matrix or a stack of matrices that mlx-lm would quantize.
pub(super) fn module(unit: &OutputTensor) -> Option<&str> {
    if unit.scheme.is_some() {
        return Some(&unit.name);
    }
    let module = unit.name.strip_suffix(".weight")?;
    let own = module.rsplit('.').next().unwrap_or(module);
    let of_heads = ["embed_q", "unembed_out"].contains(&own);
    let stack = of_heads || module.contains(".switch_mlp.") || module.contains(".experts.");
    // The per-head norms of cohere are matrices, too.
    let matrix = unit.shape.len() == 2 && !own.contains("norm") || unit.shape.len() == 3 && stack;
    (matrix && float_dtype(unit.dtype).is_some()).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_bytes_follow_the_bits_of_the_type() {
        let tensor = |dtype| Tensor { name: "a".into(), dtype, shape: vec![3, 8] };
        let bytes = [Dtype::F4, Dtype::U8, Dtype::BF16].map(|dtype| tensor(dtype).bytes());
        assert_eq!(bytes, [12, 24, 48]);
    }
}
