//! A GGUF file as a model folder: its small files, and its tensors in MLX's packing.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::family;
use crate::file::GgufFile;
use crate::file_type;
use crate::model::Stored;
use crate::names::is_of_tower;
use crate::open_files;
use crate::packing::{Conversion, Packing};
use crate::placement::Placement;
use crate::tensor::{Dtype, Tensor, packings, tensors};
use crate::tensor_type::TensorType;
use crate::text_config::{generation_config, tokenizer_config};
use crate::tokenizer::{TokenizerParts, tokenizer};

/// The beginnings of the architectures with activations above 65504, the largest number of f16.
const EXCEED_F16: [&str; 4] = ["gemma", "glm4", "chatglm", "gpt-oss"];

/// Returns true if `path` is a file that begins like a GGUF file. The name does not matter: Ollama's have no suffix.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    // Opening a pipe would wait for its writer.
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"GGUF"
}

/// Keeps a GGUF file open: until the result is dropped, opening it again reads nothing. Does nothing for other models.
pub fn keep_open(path: &Path) -> Option<GgufFolder> {
    if is_gguf(path) { GgufFolder::open(path).ok() } else { None }
}

/// A GGUF file as a model folder.
#[derive(Debug)]
pub struct GgufFolder {
    file: Arc<GgufFile>,
}

impl GgufFolder {
    /// The names of the small files that a GGUF file replaces.
    pub const SMALL_FILES: [&str; 4] =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"];

    /// Opens the file at `path`, the first one of a split model. Reads its header, unless the file is [open](keep_open).
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: open_files::open(path)? })
    }

    /// Returns the contents of a small file; `None` if the folder has no such file.
    pub fn small_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let metadata = self.file.metadata();
        let value = match name {
            "config.json" => self.config()?,
            "tokenizer.json" => tokenizer(metadata)?.json(),
            "tokenizer_config.json" => tokenizer_config(metadata)?,
            "generation_config.json" => match generation_config(metadata)? {
                Some(value) => value,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let failed = |error| Error::file(self.file.path(), format!("gives no {name}: {error}"));
        serde_json::to_vec(&value).map(Some).map_err(failed)
    }

    /// Returns the tokenizer in parts. Readers of these need not parse the text of its vocabulary.
    pub fn tokenizer(&self) -> Result<TokenizerParts> {
        tokenizer(self.file.metadata())
    }

    /// The tensors of the folder.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        tensors(&self.file, self.placements()?)
    }

    /// Returns true if the file also has a vision or audio tower. [`tensors`](Self::tensors) does not list its tensors.
    pub fn has_tower(&self) -> bool {
        self.file.tensors().iter().any(|tensor| is_of_tower(&tensor.name))
    }

    /// The quantization of most tensors, such as `Q4_K_M`; `None` if the file does not name a known one.
    pub fn quantization(&self) -> Option<&'static str> {
        file_type::name(self.file.metadata().size("general.file_type").ok()??)
    }

    /// The float type to compute in, if the types of the tensors do not show it: bf16 for quantized files. Scales are stored in f16 or f32, but
    /// activations of some models exceed the range of f16. For those, bf16 also replaces f16 in files that are not quantized.
    pub fn float_type(&self) -> Option<Dtype> {
        let has = |is: fn(TensorType) -> bool| self.file.tensors().iter().any(|tensor| is(tensor.kind));
        let architecture = self.file.metadata().architecture().unwrap_or_default();
        let exceeds_f16 = EXCEED_F16.iter().any(|name| architecture.starts_with(name));
        let is_half = exceeds_f16 && has(|kind| kind == TensorType::F16);
        (is_half || has(|kind| Conversion::of(kind).is_some())).then_some(Dtype::BF16)
    }

    /// Returns config.json with the packing of each quantized module, as mlx-lm writes it.
    fn config(&self) -> Result<Value> {
        let (stored, file) = (self.stored(), &self.file);
        let mut config =
            family::config(file.metadata(), &stored, &|index| file.floats(&file.tensors()[index]))?;
        let packings = packings(file, &self.placements()?);
        if let Some((_, first)) = packings.first() {
            let mut quantization = entry(*first);
            for (module, packing) in &packings {
                quantization[module] = entry(*packing);
            }
            config["quantization"] = quantization;
        }
        Ok(config)
    }

    fn placements(&self) -> Result<Vec<(usize, Placement)>> {
        family::placements(self.file.metadata(), &self.stored())
    }

    fn stored(&self) -> Vec<Stored<'_>> {
        self.file.tensors().iter().map(|it| Stored { name: &it.name, shape: &it.shape }).collect()
    }
}

fn entry(packing: Packing) -> Value {
    json!({ "group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode.name() })
}
