//! A model as it lies in its files, for those who write others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::config::DecoderConfig;
use super::{family, tensors, vision};
use crate::config::Fields;
use crate::error::Result;
use crate::quantization::QuantizationConfig;
use crate::weights::{Checkpoint, Entry, WeightPolicy, Weights};

pub(crate) struct InFiles {
    pub(crate) family: String,
    /// Corrected by the tensors.
    pub(crate) config: DecoderConfig,
    /// What the decoder takes. It reads the tower's tensors, too.
    pub(crate) checkpoint: Checkpoint,
    /// The tensors of the tower, by the names that mlx-vlm gives them; none if it has no tower that can be loaded here.
    pub(crate) tower: BTreeMap<String, Entry>,
    /// The names of the embedding's and the head's modules in the files. The files may lack either.
    pub(crate) tables: [String; 2],
    /// The other parts, which nothing here takes.
    pub(crate) unused: BTreeSet<&'static str>,
}

impl InFiles {
    /// The model in `folder`; of its tensors the headers alone are read.
    pub(crate) fn read(folder: &Path, policy: WeightPolicy) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let (family, mut config) = family::read(&fields)?;
        let progress = &mut |_, _| {};
        let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
        let (mut tower, mut unused) = (BTreeMap::new(), BTreeSet::new());
        if config.tensors.nested {
            tower = vision::take_tensors(&fields, &mut weights)?;
            unused.extend(weights.entries().keys().filter_map(|name| tensors::part_beside(name)));
        }
        config.prepare(&mut weights)?;
        let tables = ["model.embed_tokens", "lm_head"].map(|module| weights.in_files(module));
        Ok(Self { family, config, tables, checkpoint: weights.into_checkpoint(), tower, unused })
    }
}
