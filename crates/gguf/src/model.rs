//! The metadata and the tensors of a file, by the keys and names of its architecture.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::metadata::{List, Metadata, Value};

/// The name and the shape of a stored tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// The name, such as `blk.0.attn_q.weight`.
    pub(crate) name: &'a str,
    /// The shape, outermost axis first.
    pub(crate) shape: &'a [usize],
}

/// A file with a decoder.
pub(crate) struct Model<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) tensors: &'a [Stored<'a>],
    pub(crate) architecture: &'a str,
    /// The number of layers, without the draft layers after the last one.
    pub(crate) layers: usize,
    by_name: BTreeMap<&'a str, usize>,
}

impl<'a> Model<'a> {
    pub(crate) fn of(metadata: &'a Metadata, tensors: &'a [Stored<'a>]) -> Result<Self> {
        let by_name = tensors.iter().enumerate().map(|(index, tensor)| (tensor.name, index)).collect();
        let mut model =
            Self { metadata, tensors, architecture: metadata.architecture()?, layers: 0, by_name };
        let all = model.size("block_count")?;
        if all > tensors.len() {
            let message = format!("is {all}; the file has only {} tensors", tensors.len());
            return Err(model.error("block_count", message));
        }
        let drafts = model.optional_size("nextn_predict_layers")?.unwrap_or(0);
        model.layers = all.checked_sub(drafts).filter(|&layers| layers > 0).ok_or_else(|| {
            model.error(
                "block_count",
                format!("is {all}; it must be above nextn_predict_layers, which is {drafts}"),
            )
        })?;
        Ok(model)
    }

    /// Returns the full name of a key.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Returns an error about a key of the architecture.
    pub(crate) fn error(&self, name: &str, message: impl std::fmt::Display) -> Error {
        self.metadata.error(&self.key(name), message)
    }

    /// Returns an error about a tensor.
    pub(crate) fn tensor_error(&self, name: &str, message: impl std::fmt::Display) -> Error {
        Error::file(self.metadata.path(), format!("tensor {name} {message}"))
    }

    pub(crate) fn optional_size(&self, name: &str) -> Result<Option<usize>> {
        self.metadata.size(&self.key(name))
    }

    /// Returns an optional size. A size of 0 counts as none.
    pub(crate) fn positive_size(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.optional_size(name)?.filter(|&size| size > 0))
    }

    /// Returns a size above 0.
    pub(crate) fn size(&self, name: &str) -> Result<usize> {
        match self.optional_size(name)? {
            None => Err(self.error(name, "is missing")),
            Some(0) => Err(self.error(name, "is 0; it must be above 0")),
            Some(size) => Ok(size),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.metadata.text(&self.key(name))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.metadata.flag(&self.key(name))
    }

    /// Returns an optional number, with as many decimal digits as the stored type distinguishes.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.metadata.number(&self.key(name))?.map(shortest))
    }

    /// Returns one count for each layer. A single count holds for all layers.
    pub(crate) fn by_layer(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(list) = self.metadata.integers(&self.key(name))? else { return Ok(None) };
        let sizes: Option<Vec<usize>> = list
            .iter()
            .map(|&number| i32::try_from(number).ok().and_then(|size| usize::try_from(size).ok()))
            .collect();
        let Some(sizes) = sizes else {
            return Err(self.error(name, "must be whole numbers from 0 to 2147483647"));
        };
        match sizes.as_slice() {
            [one] => Ok(Some(vec![*one; self.layers])),
            all if all.len() >= self.layers => Ok(Some(all[..self.layers].to_vec())),
            _ => {
                let message = format!("has {} entries; there are {} layers", sizes.len(), self.layers);
                Err(self.error(name, message))
            }
        }
    }

    /// Returns the largest count of all layers, above 0.
    pub(crate) fn largest(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.by_layer(name)?.and_then(|all| all.into_iter().max()).filter(|&most| most > 0))
    }

    /// Returns true for each layer with a sliding window: by a list, or all except every n-th layer. `usual` is n if the key is missing.
    pub(crate) fn sliding(&self, usual: usize) -> Result<Vec<bool>> {
        let name = "attention.sliding_window_pattern";
        let stored = self.metadata.get(&self.key(name));
        if let Some(Value::List(List::Bools(_) | List::Integers(_))) = stored {
            let all = self.by_layer(name)?.unwrap_or_default();
            return Ok(all.into_iter().map(|layer| layer != 0).collect());
        }
        let every = self.optional_size(name)?.unwrap_or(usual);
        Ok((1..=self.layers).map(|layer| every > 0 && !layer.is_multiple_of(every)).collect())
    }

    /// Returns the index of a tensor.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns true if the layer has the tensor.
    pub(crate) fn layer_has(&self, layer: usize, part: &str) -> bool {
        self.has(&format!("blk.{layer}.{part}"))
    }

    /// Returns true if a layer has the tensor.
    pub(crate) fn any_has(&self, part: &str) -> bool {
        (0..self.layers).any(|layer| self.layer_has(layer, part))
    }

    /// Returns the number of rows of the tensor in the first layer that has it.
    pub(crate) fn rows_of(&self, part: &str) -> Option<usize> {
        let index = (0..self.layers).find_map(|layer| self.find(&format!("blk.{layer}.{part}")))?;
        let shape = self.tensors[index].shape;
        shape.len().checked_sub(2).map(|axis| shape[axis])
    }

    /// Returns the dimensions of a head.
    pub(crate) fn head_dim(&self) -> Result<usize> {
        if let Some(size) = self.positive_size("attention.key_length")? {
            return Ok(size);
        }
        match self.size("embedding_length")? / self.heads()? {
            0 => Err(self.error("attention.head_count", "is above embedding_length")),
            size => Ok(size),
        }
    }

    /// Returns the number of query heads.
    pub(crate) fn heads(&self) -> Result<usize> {
        self.largest("attention.head_count")?.ok_or_else(|| {
            self.error("attention.head_count", "is missing or 0; the number of heads is required")
        })
    }

    /// Returns the number of key and value heads.
    pub(crate) fn kv_heads(&self) -> Result<usize> {
        match self.largest("attention.head_count_kv")? {
            Some(count) => Ok(count),
            None => self.heads(),
        }
    }
}

/// Returns the shortest decimal number that rounds to the same 32-bit float, if `number` is one.
pub(crate) fn shortest(number: f64) -> f64 {
    let narrow = number as f32;
    if f64::from(narrow).to_bits() != number.to_bits() {
        return number;
    }
    narrow.to_string().parse().unwrap_or(number)
}
