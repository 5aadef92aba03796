//! A model as its files contain it, for code that writes other files from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::{audio, tensors, vision};
use crate::config::Fields;
use crate::error::Result;
use crate::quantization::QuantizationConfig;
use crate::weights::{Checkpoint, Entry, WeightPolicy, Weights};

pub(crate) struct InFiles {
    pub(crate) family: String,
    /// The config, corrected by the tensors.
    pub(crate) config: DecoderConfig,
    /// The checkpoint, which has the decoder's tensors. It can also read those of the tower.
    pub(crate) checkpoint: Checkpoint,
    /// The tensors of the vision and audio towers, by mlx-vlm's names. Empty if the model has no supported tower.
    pub(crate) tower: BTreeMap<String, Entry>,
    /// The names of the embedding and the head in the files. The files may lack either.
    pub(crate) tables: [String; 2],
    /// The other parts of the model, which are not loaded.
    pub(crate) unused: BTreeSet<&'static str>,
    /// The quantization of the checkpoint.
    pub(crate) quantization: QuantizationConfig,
}

impl InFiles {
    /// Reads config.json and the headers of the tensors in `folder`.
    pub(crate) fn read(folder: &Path, policy: WeightPolicy) -> Result<Self> {
        let fields = Fields::read(&folder.join("config.json"))?;
        let (family, architecture) = Architecture::read(&fields)?;
        let progress = &mut |_, _| {};
        let mut weights = Weights::open(folder, QuantizationConfig::read(&fields)?, policy, progress)?;
        let (mut tower, mut unused) = (BTreeMap::new(), BTreeSet::new());
        let config = match architecture {
            Architecture::Decoder(mut config) => {
                if config.tensors.nested {
                    tower = vision::take_tensors(&fields, &mut weights)?;
                    tower.extend(audio::take_tensors(&fields, &mut weights));
                    unused.extend(weights.entries().keys().filter_map(|name| tensors::non_text_part(name)));
                }
                config.prepare(&mut weights)?;
                config
            }
            Architecture::Encoder(mut config) => {
                config.prepare(&mut weights)?;
                config.stack
            }
            Architecture::Whisper(_) => {
                return Err(fields.error("model_type", "is whisper, whose files cannot be converted"));
            }
        };
        let tables = ["model.embed_tokens", "lm_head"].map(|module| weights.file_name_of(module));
        let (checkpoint, quantization) = weights.into_checkpoint();
        Ok(Self { family, config, checkpoint, tower, tables, unused, quantization })
    }
}
