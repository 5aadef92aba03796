//! What makes the bits of a cache, as a number: prefixes on disk are restored only where they could have been computed.

use xxhash_rust::xxh3::Xxh3;

use super::device::Device;
use super::prefill_chunk::PrefillChunk;
use crate::cache::{DiskCache, Tier};
use crate::engine::options::EngineOptions;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::model::LogitRows;

/// The most tokens of the text that is computed to see what the device makes of the model.
const PROBE: usize = 64;

impl Device {
    /// The prefixes of this model that are on disk, if that was asked for.
    pub(in crate::engine) fn saved_prefixes(
        &self,
        options: &EngineOptions,
        folder: &ModelFolder,
    ) -> Result<Option<DiskCache>> {
        let Some(disk) = &options.prompt_cache else { return Ok(None) };
        if options.prefix_cache == Some(0) {
            let message =
                "cannot be used without a prefix cache in memory, which saves from and restores to it";
            return Err(Error::option("prompt_cache", message));
        }
        if options.kv_bits.is_some() {
            let message = "cannot be used with kv_bits: what is saved are the numbers as they were computed";
            return Err(Error::option("prompt_cache", message));
        }
        let adapters = 0..self.specs().len();
        let fingerprints = adapters.map(|adapter| self.fingerprints(adapter, folder));
        let fingerprints = fingerprints.collect::<Result<Vec<_>>>()?;
        DiskCache::open(disk.clone(), fingerprints.into_iter().flatten().collect()).map(Some)
    }

    /// One for each tier of an adapter. Of the weights, the configuration, the tokenizer, how passes are shaped, and, as the last word on libraries, processors and
    /// threads, the very bits that this device makes of a text.
    fn fingerprints(&self, adapter: usize, folder: &ModelFolder) -> Result<Vec<u128>> {
        let spec = self.model(adapter).spec();
        let tokenizer = folder.path.join("tokenizer.json");
        let tokenizer = std::fs::read(&tokenizer).map_err(|error| Error::io(tokenizer, error))?;
        let mut hash = Xxh3::new();
        hash.update(&spec.fingerprint.to_le_bytes());
        hash.update(&tokenizer);
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

    /// The logits after a chunk of a prompt, and those after a step behind it.
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
