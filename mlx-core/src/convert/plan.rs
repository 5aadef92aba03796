//! What becomes of each tensor of a checkpoint, from the headers of its files. Invariant: pure; the names and shapes of the result are those
//! of mlx-lm's.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::{ConvertOptions, Rule};
use crate::array::float_dtype;
use crate::error::{Error, Result};
use crate::quantization::QuantScheme;
use crate::weights::{Checkpoint, Entry};

/// What is made from the same numbers: one tensor, or a packed matrix with its scales and biases.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// The name of the tensor, or of the module whose weights are packed.
    pub(super) name: String,
    /// Where its numbers lie, one after the other.
    pub(super) sources: Vec<Entry>,
    /// `[..., output, input]`, before packing.
    pub(super) shape: Vec<usize>,
    /// The type of what is not packed.
    pub(super) dtype: Dtype,
    /// How it is packed.
    pub(super) packing: Option<QuantScheme>,
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

impl Unit {
    /// The tensors that it becomes: itself, or words, scales and biases.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let Some(packing) = self.packing else {
            return vec![Tensor { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone() }];
        };
        let tensor = |part: &str, dtype, width: usize| {
            let shape = [self.rows(), &[width]].concat();
            Tensor { name: format!("{}.{part}", self.name), dtype, shape }
        };
        let words = self.inputs() * packing.bits / 32;
        let groups = self.inputs() / packing.group_size;
        let weight = tensor("weight", Dtype::U32, words);
        if packing.has_biases() {
            vec![weight, tensor("scales", self.dtype, groups), tensor("biases", self.dtype, groups)]
        } else {
            vec![weight, tensor("scales", Dtype::U8, groups)]
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Its numbers before packing.
    pub(super) fn numbers(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    fn rows(&self) -> &[usize] {
        self.shape.split_last().map_or(&[], |(_, rows)| rows)
    }

    /// The numbers of a row.
    pub(super) fn inputs(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// What becomes of all tensors of `checkpoint`, a model of this family.
pub(super) fn plan(checkpoint: &Checkpoint, family: &str, options: &ConvertOptions) -> Result<Vec<Unit>> {
    if let Some((name, entry)) = checkpoint.entries().iter().find(|(_, entry)| entry.shape.contains(&0)) {
        return Err(
            checkpoint.error(entry, format!("tensor {name} has shape {:?}: it holds nothing", entry.shape))
        );
    }
    let mut units = Vec::new();
    let mut stacks: BTreeMap<String, BTreeMap<usize, Entry>> = BTreeMap::new();
    for (name, entry) in checkpoint.entries() {
        // mlx-lm knows experts side by side alone.
        match expert(name).filter(|_| options.packing.is_some()) {
            Some((stack, index)) => drop(stacks.entry(stack).or_default().insert(index, entry.clone())),
            None => units.push(plain(name.clone(), vec![entry.clone()], entry.shape.clone(), options)),
        }
    }
    for (name, experts) in stacks {
        let first = experts.values().next().map(|entry| (entry.dtype, entry.shape.clone()));
        let (dtype, shape) = first.unwrap_or((Dtype::F32, Vec::new()));
        let complete = experts.keys().copied().eq(0..experts.len());
        if !complete || experts.values().any(|entry| entry.dtype != dtype || entry.shape != shape) {
            let message = format!("the experts that would make {name} are not all there, or not alike");
            return Err(Error::file(checkpoint.place(), message));
        }
        let shape = [&[experts.len()], shape.as_slice()].concat();
        units.push(plain(name, experts.into_values().collect(), shape, options));
    }
    units.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(usual) = options.packing {
        Packer { usual, rules: &options.rules, habits: Rule::habits(family) }.pack(&mut units)?;
        if units.iter().all(|unit| unit.packing.is_none()) {
            let message = format!("no matrix has rows of whole groups: {usual} suits none of this model");
            return Err(Error::file(checkpoint.place(), message));
        }
    }
    Ok(units)
}

/// The tensor as it is but for its type.
fn plain(name: String, sources: Vec<Entry>, shape: Vec<usize>, options: &ConvertOptions) -> Unit {
    let given = sources.first().map_or(Dtype::F32, |entry| entry.dtype);
    let dtype = options.dtype.filter(|_| float_dtype(given).is_some()).unwrap_or(given);
    Unit { name, sources, shape, dtype, packing: None }
}

/// The stack, in mlx-lm's words, that holds the weights of a single expert, and which expert it is.
fn expert(name: &str) -> Option<(String, usize)> {
    let (place, rest) = name.split_once(".experts.")?;
    let (index, part) = rest.split_once('.')?;
    let part = match part {
        "gate_proj.weight" | "w1.weight" => "gate_proj",
        "up_proj.weight" | "w3.weight" => "up_proj",
        "down_proj.weight" | "w2.weight" => "down_proj",
        _ => return None,
    };
    Some((format!("{place}.switch_mlp.{part}.weight"), index.parse().ok()?))
}

struct Packer<'a> {
    usual: QuantScheme,
    rules: &'a [Rule],
    habits: Vec<Rule>,
}

impl Packer<'_> {
    fn pack(&self, units: &mut [Unit]) -> Result<()> {
        for unit in units.iter_mut() {
            let Some(module) = module(unit).map(str::to_owned) else { continue };
            unit.packing = self.packing(&module, unit.inputs())?;
            if unit.packing.is_some() {
                unit.name = module;
            }
        }
        let about = |rule: &Rule, unit: &Unit| {
            rule.matches(&unit.name) || module(unit).is_some_and(|module| rule.matches(module))
        };
        match self.rules.iter().find(|rule| !units.iter().any(|unit| about(rule, unit))) {
            None => Ok(()),
            Some(rule) => {
                let some =
                    units.iter().rfind(|unit| unit.packing.is_some()).map_or("", |unit| unit.name.as_str());
                let message = format!(
                    "{} is about no module of this model, whose modules are called as in {some}",
                    rule.text()
                );
                Err(Error::request("rule", message))
            }
        }
    }

    /// How `module` with rows of `inputs` numbers is packed, if it is.
    fn packing(&self, module: &str, inputs: usize) -> Result<Option<QuantScheme>> {
        if let Some(rule) = self.rules.iter().find(|rule| rule.matches(module)) {
            let packing = rule.packing(self.usual);
            return match packing.filter(|packing| packing.words(inputs).is_none()) {
                None => Ok(packing),
                Some(packing) => {
                    let message = format!(
                        "{} cannot be: {module} has rows of {inputs} numbers, and {packing} asks for whole groups",
                        rule.text()
                    );
                    Err(Error::request("rule", message))
                }
            };
        }
        let habit =
            self.habits.iter().find(|rule| rule.matches(module)).and_then(|rule| rule.packing(self.usual));
        Ok(habit.into_iter().chain([self.usual]).find(|packing| packing.words(inputs).is_some()))
    }
}

/// The module whose matrix, or stack of matrices, a unit is, if it is one that mlx-lm may pack.
pub(super) fn module(unit: &Unit) -> Option<&str> {
    if unit.packing.is_some() {
        return Some(&unit.name);
    }
    let module = unit.name.strip_suffix(".weight")?;
    let own = module.rsplit('.').next().unwrap_or(module);
    let stack = module.contains(".switch_mlp.") || module.contains(".experts.");
    // The norms of cohere's heads are matrices, too.
    let matrix = unit.shape.len() == 2 && !own.contains("norm") || unit.shape.len() == 3 && stack;
    (matrix && float_dtype(unit.dtype).is_some()).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_types_take_their_bits() {
        let tensor = |dtype| Tensor { name: "a".into(), dtype, shape: vec![3, 8] };
        let bytes = [Dtype::F4, Dtype::U8, Dtype::BF16].map(|dtype| tensor(dtype).bytes());
        assert_eq!(bytes, [12, 24, 48]);
    }
}
