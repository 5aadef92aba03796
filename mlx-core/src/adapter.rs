//! Adapters: the result of fine-tuning a model, in a separate folder, as mlx-lm or PEFT writes it. Invariant: a tensor that no part of
//! the model uses is an error, since the adapted model would differ from the trained one.

mod config;
mod fuse;
mod names;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::Dtype;
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::weights::checkpoint::{Checkpoint, Entry};
pub use config::{AdapterConfig, AdapterKind};
pub(crate) use fuse::Change;
use names::{FactorRole, canonical};

/// An open adapter, with the tensors that have not been taken yet.
pub(crate) struct Adapter {
    config: AdapterConfig,
    checkpoint: Checkpoint,
    /// The tensors of low-rank changes, by the canonical name of the module. Empty if the adapter replaces tensors.
    modules: BTreeMap<String, BTreeMap<FactorRole, String>>,
    /// The number of parameters in the file.
    parameters: u64,
    /// The common type of the tensors, or `mixed`.
    dtype: &'static str,
    /// The bytes of the tensors in the file.
    file_bytes: u64,
    /// The hash of all tensors read so far.
    hash: Xxh3,
}

/// A description of an adapter for display.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSummary {
    /// The type and the settings of its training.
    pub config: AdapterConfig,
    /// The number of modules that it changes, or of tensors that it replaces.
    pub modules: usize,
    /// The number of its parameters.
    pub parameters: u64,
    /// The type of its tensors in the file: `f32`, `f16`, `bf16`, or `mixed`.
    pub dtype: &'static str,
    /// The bytes of its tensors in the file.
    pub file_bytes: u64,
}

impl AdapterSummary {
    /// Returns the bytes of its tensors on the device, for a model that computes in this type.
    pub fn device_bytes(&self, dtype: &str) -> u64 {
        let is_same = self.dtype == dtype || self.config.kind == AdapterKind::Full;
        self.parameters * float_bytes(is_same, dtype)
    }
}

/// The tensors of a low-rank change: its two factors as stored in the file, and DoRA's magnitudes.
#[derive(Debug, Clone)]
pub(crate) struct Factors {
    pub(crate) first: Factor,
    pub(crate) second: Factor,
    pub(crate) magnitude: Option<Factor>,
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub(crate) struct Factor {
    pub(crate) entry: Entry,
    /// True if it must be transposed to mlx-lm's layout.
    pub(crate) transposed: bool,
}

/// The module that a change applies to. Its size determines the shapes of the factors, together with the adapter's rank.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// A projection: `[input, rank]` and `[rank, output]`.
    Linear { inputs: usize, outputs: usize },
    /// The projections of all experts: `[experts, rank, input]` and `[experts, output, rank]`.
    Experts { count: usize, inputs: usize, outputs: usize },
    /// An embedding table: `[rows, rank]` and `[rank, width]`.
    Embedding { rows: usize, width: usize },
}

/// The numbers that a projection reads, or those that it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Inputs,
    Outputs,
}

impl Adapter {
    /// Opens the adapter in `folder`. Reads the config and the headers, and checks them against each other.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let config = AdapterConfig::read(folder)?;
        let checkpoint = Checkpoint::open_file(folder.join(config.weights_file()))?;
        let entries = checkpoint.entries();
        if entries.is_empty() {
            return Err(Error::file(checkpoint.main_file(), "has no tensors"));
        }
        for (name, entry) in entries {
            let is_float = matches!(entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            if entry.shape.contains(&0) || !is_float && config.kind != AdapterKind::Full {
                let allowed = if config.kind == AdapterKind::Full {
                    "not be empty"
                } else {
                    "be F32, F16 or BF16, and not empty"
                };
                let message = format!(
                    "tensor {name} has shape {:?} and type {:?}; it must {allowed}",
                    entry.shape, entry.dtype
                );
                return Err(checkpoint.error(entry, message));
            }
        }
        let sizes = entries.values().map(|entry| entry.shape.iter().product::<usize>() as u64);
        let (parameters, file_bytes) = (sizes.sum(), entries.values().map(|entry| entry.length as u64).sum());
        let modules =
            if config.kind == AdapterKind::Full { BTreeMap::new() } else { modules(&config, &checkpoint)? };
        let dtype = label(entries.values().map(|entry| entry.dtype).collect());
        Ok(Self { config, checkpoint, modules, parameters, dtype, file_bytes, hash: Xxh3::new() })
    }

    /// Returns a description for display.
    pub(crate) fn summary(&self) -> AdapterSummary {
        AdapterSummary {
            config: self.config.clone(),
            modules: if self.is_full() { self.checkpoint.entries().len() } else { self.modules.len() },
            parameters: self.parameters,
            dtype: self.dtype,
            file_bytes: self.file_bytes,
        }
    }

    /// Returns true if it replaces tensors instead of adding to them.
    pub(crate) fn is_full(&self) -> bool {
        self.config.kind == AdapterKind::Full
    }

    /// The scale of the product of the factors.
    pub(crate) fn scale(&self) -> f32 {
        self.config.scale
    }

    /// Checks that a model with `layers` layers contains all modules of the adapter, and that the adapter's config covers them.
    pub(crate) fn check_layers(&self, layers: usize) -> Result<()> {
        for (module, parts) in &self.modules {
            self.config.check_module(module, layers).map_err(|why| {
                let tensor = parts.values().next().map_or(module.as_str(), String::as_str);
                Error::file(self.checkpoint.main_file(), format!("tensor {tensor} {why}"))
            })?;
        }
        Ok(())
    }

    /// Takes the factors of the module with one of these names; `None` if the adapter does not change it.
    pub(crate) fn take(&mut self, names: &[String], target: Target) -> Result<Option<Factors>> {
        let found = names.iter().find_map(|name| self.modules.remove(canonical(name).as_ref()));
        let Some(parts) = found else { return Ok(None) };
        let rank = self.config.rank;
        let (first, second, outputs) = match target {
            Target::Linear { inputs, outputs } => (vec![inputs, rank], vec![rank, outputs], outputs),
            Target::Embedding { rows, width } => (vec![rows, rank], vec![rank, width], width),
            Target::Experts { count, inputs, outputs } => {
                (vec![count, rank, inputs], vec![count, outputs, rank], outputs)
            }
        };
        let is_linear = matches!(target, Target::Linear { .. });
        if self.config.kind == AdapterKind::Dora && !is_linear {
            let name = parts.values().next().map_or("", String::as_str);
            let message =
                format!("tensor {name} belongs to experts or an embedding; DoRA supports only projections");
            return Err(Error::file(self.checkpoint.main_file(), message));
        }
        let reason = format!("rank {rank} in {} and {target}", config::FILE);
        let mut factor = |part: FactorRole, shape: Vec<usize>| -> Result<Factor> {
            let name = &parts[&part];
            // PEFT does not support stacks.
            let transposed = self.config.is_transposed && shape.len() == 2;
            let shape = if transposed { shape.into_iter().rev().collect() } else { shape };
            Ok(Factor { entry: self.checkpoint.take(name, &shape, &reason)?, transposed })
        };
        let magnitude = parts.contains_key(&FactorRole::Magnitude);
        Ok(Some(Factors {
            first: factor(FactorRole::First, first)?,
            second: factor(FactorRole::Second, second)?,
            magnitude: magnitude.then(|| factor(FactorRole::Magnitude, vec![outputs])).transpose()?,
        }))
    }

    /// Returns true if it has tensors for this module that were not taken yet.
    pub(crate) fn changes(&self, module: &str) -> bool {
        self.modules.contains_key(canonical(module).as_ref())
    }

    /// Replaces tensors of `checkpoint` if this adapter replaces tensors. Returns their names.
    pub(crate) fn replace(&mut self, checkpoint: &mut Checkpoint) -> Result<BTreeSet<String>> {
        if !self.is_full() {
            return Ok(BTreeSet::new());
        }
        checkpoint.overlay(&mut self.checkpoint)
    }

    /// The number of parameters that it adds.
    pub(crate) fn added_parameters(&self) -> u64 {
        if self.is_full() { 0 } else { self.parameters }
    }

    /// The bytes of the tensors in the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// A hash of the tensors read and of the config's scale.
    pub(crate) fn hash(&self) -> u128 {
        let mut hash = self.hash.clone();
        hash.update(&self.config.scale.to_bits().to_le_bytes());
        hash.digest128()
    }

    /// Fails if tensors are left. They belong to no part of the model that can be adapted.
    pub(crate) fn expect_taken(&self) -> Result<()> {
        let names: Vec<&str> = self.modules.values().flat_map(BTreeMap::values).map(String::as_str).collect();
        if names.is_empty() {
            return Ok(());
        }
        let more = names.len().saturating_sub(4);
        let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "this model has no modules for these tensors, or they cannot be adapted: {}{tail}; is the adapter for another model?",
            names[..names.len().min(4)].join(", ")
        );
        Err(Error::file(self.checkpoint.main_file(), message))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Linear { inputs, outputs } => {
                write!(formatter, "a projection of this model from {inputs} to {outputs} numbers")
            }
            Self::Experts { count, inputs, outputs } => {
                write!(formatter, "{count} experts of this model from {inputs} to {outputs} numbers")
            }
            Self::Embedding { rows, width } => {
                write!(formatter, "the embedding of this model of {rows} tokens by {width} numbers")
            }
        }
    }
}

/// Groups the tensors of `checkpoint` by module. Each module needs both factors and, in DoRA, magnitudes.
fn modules(
    config: &AdapterConfig,
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<String, BTreeMap<FactorRole, String>>> {
    let mut modules: BTreeMap<String, BTreeMap<FactorRole, String>> = BTreeMap::new();
    let fail = |name: &str, message: &str| {
        Err(Error::file(checkpoint.main_file(), format!("tensor {name} {message}")))
    };
    for name in checkpoint.entries().keys() {
        let Some((module, part)) = names::parse(name, config.is_transposed) else {
            return fail(name, "is not a factor or a magnitude of a low-rank change");
        };
        if modules.entry(module).or_default().insert(part, name.clone()).is_some() {
            return fail(name, "duplicates a tensor with another name");
        }
    }
    for parts in modules.values() {
        let name = parts.values().next().map_or("", String::as_str);
        if !parts.contains_key(&FactorRole::First) || !parts.contains_key(&FactorRole::Second) {
            return fail(name, "exists without the other factor of its low-rank change");
        }
        let is_dora = config.kind == AdapterKind::Dora;
        if parts.contains_key(&FactorRole::Magnitude) != is_dora {
            let message = format!(
                "belongs to a module {} magnitudes, but the type in {} is {}",
                if is_dora { "without" } else { "with" },
                config::FILE,
                config.kind.as_str()
            );
            return fail(name, &message);
        }
    }
    Ok(modules)
}

/// The bytes on the device of a number, for a model that computes in `dtype`. `is_same` is true if it keeps its type.
fn float_bytes(is_same: bool, dtype: &str) -> u64 {
    if is_same && dtype != "f32" { 2 } else { 4 }
}

/// Returns the name of the type if there is only one, else `mixed`.
fn label(dtypes: BTreeSet<Dtype>) -> &'static str {
    match dtypes.into_iter().collect::<Vec<_>>()[..] {
        [Dtype::F32] => "f32",
        [Dtype::F16] => "f16",
        [Dtype::BF16] => "bf16",
        _ => "mixed",
    }
}

/// Describes the adapter in `folder`, for a model with `layers` layers, without loading it.
pub fn summary(folder: &Path, layers: usize) -> Result<AdapterSummary> {
    let adapter = Adapter::open(folder)?;
    adapter.check_layers(layers)?;
    Ok(adapter.summary())
}

#[cfg(test)]
mod tests;
