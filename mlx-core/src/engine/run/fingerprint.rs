//! Fingerprints of everything that determines the bits of a cache. A prefix on disk is restored only where it could have been computed.

use xxhash_rust::xxh3::Xxh3;

use super::device::Device;
use super::prefill_chunk::PrefillChunk;
use crate::cache::{DiskCache, Tier};
use crate::engine::options::EngineOptions;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::LogitRows;

/// The maximum number of tokens of the probe text, which shows how the device computes the model.
const PROBE: usize = 64;

impl Device {
    /// Opens the disk cache of this model's prefixes, if the options request it.
    pub(in crate::engine) fn saved_prefixes(
        &self,
        options: &EngineOptions,
        folder: &ModelFolder,
    ) -> Result<Option<DiskCache>> {
        let Some(disk) = &options.prompt_cache else { return Ok(None) };
        if options.prefix_cache == Some(0) {
            let message = "cannot be used without a prefix cache in memory, which it saves from";
            return Err(Error::option("prompt_cache", message));
        }
        if options.kv_bits.is_some() {
            let message = "cannot be used with kv_bits: quantized keys and values cannot be saved";
            return Err(Error::option("prompt_cache", message));
        }
        let adapters = 0..self.specs().len();
        let fingerprints = adapters.map(|adapter| self.fingerprints(adapter, folder));
        let fingerprints = fingerprints.collect::<Result<Vec<_>>>()?;
        DiskCache::open(disk.clone(), fingerprints.into_iter().flatten().collect()).map(Some)
    }

    /// Returns one fingerprint for each tier of an adapter. It covers the weights, the configuration, the tokenizer and the shapes of
    /// passes. It also covers the bits that this device computes for a probe text, which depend on libraries, processors and threads.
    fn fingerprints(&self, adapter: usize, folder: &ModelFolder) -> Result<Vec<u128>> {
        let spec = self.model(adapter).spec();
        let tokenizer = mlx_files::read_model_file(&folder.path.join("tokenizer.json"), u64::MAX)?;
        let mut hash = Xxh3::new();
        hash.update(&spec.fingerprint.to_le_bytes());
        hash.update(&tokenizer.unwrap_or_default());
        let shapes = format!("{} {:?}", spec.dtype, self.chunks);
        hash.update(shapes.as_bytes());
        for logit in self.probe(adapter)? {
            hash.update(&logit.to_bits().to_le_bytes());
        }
        let of_tier = |name: &str| {
            let mut hash = hash.clone();
            hash.update(name.as_bytes());
            hash.digest128()
        };
        Ok(Tier::NAMES.map(of_tier).to_vec())
    }

    /// Returns the logits after a prompt chunk, and those after the following decode step.
    fn probe(&self, adapter: usize) -> Result<Vec<f32>> {
        let spec = self.model(adapter).spec();
        let length = PROBE.min(spec.context_length - 1).max(1);
        let token = |place: usize| (place * 7919 % spec.vocab_size) as u32;
        let tokens: Vec<u32> = (0..length).map(token).collect();
        let mut state = self.new_state(0);
        let chunk = PrefillChunk::of_text(&tokens, 0, LogitRows::Last);
        let mut pass = self.begin_prefill(adapter, &[chunk])?;
        self.advance(adapter, &mut pass, self.layers(), &mut [&mut state])?;
        let prompt = self.logits(adapter, &pass)?;
        let step = self.decode(adapter, &[(token(length), length)], &mut [&mut state], false)?;
        Ok([prompt.values()?, step.values()?].concat())
    }
}
