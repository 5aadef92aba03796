//! The pictures and audio clips of a step: the towers encode them before their rows are computed, and their features are cached.

use super::{Failure, Runner};
use crate::engine::media::Medium;
use crate::engine::run::executor::Fault;
use crate::engine::schedule::plan::StepPlan;
use crate::engine::sequence::{Sequence, Sequences};
use crate::error::Result;
use crate::model::Hidden;

/// The failures of encoding.
#[derive(Default)]
pub(in crate::engine) struct Encoded {
    /// Sequences with a picture or clip that could not be encoded.
    pub(in crate::engine) failed: Vec<Failure>,
    /// An error of the step that began early.
    pub(in crate::engine) fault: Option<Fault>,
}

impl Runner {
    /// Assigns numbers to the pictures and clips of a new sequence, which identify them in comparisons.
    pub(in crate::engine) fn number_media(&mut self, sequence: &mut Sequence) {
        sequence.number_media(|medium| self.encoder_cache.number(medium));
    }

    /// Encodes the pictures and clips that a step needs, one after the other. If one fails, its sequence leaves the plan.
    pub(in crate::engine) fn encode_media(
        &mut self,
        plan: &mut StepPlan,
        sequences: &mut Sequences,
    ) -> Encoded {
        let mut encoded = Encoded::default();
        for chunk in plan.prefill.iter().flat_map(|prefill| &prefill.chunks) {
            let sequence = sequences.get(chunk.id);
            let owner = sequence.limits.owner;
            for (item, medium) in sequence.media_to_encode(&chunk.range) {
                match self.features(owner, &medium, sequences, &mut encoded) {
                    Ok(features) => {
                        sequences.get_mut(chunk.id).running().features.insert(item, features);
                    }
                    Err(error) => {
                        encoded.failed.push(Failure { id: chunk.id, error });
                        break;
                    }
                }
            }
        }
        for failure in &encoded.failed {
            for prefill in &mut plan.prefill {
                prefill.chunks.retain(|chunk| chunk.id != failure.id);
            }
        }
        plan.prefill.retain(|prefill| !prefill.chunks.is_empty());
        encoded
    }

    /// Returns the features of a picture or a clip, from its owner's cache or newly computed.
    fn features(
        &mut self,
        owner: Option<u64>,
        medium: &Medium,
        sequences: &mut Sequences,
        encoded: &mut Encoded,
    ) -> Result<Hidden> {
        if let Some(features) = self.encoder_cache.get(owner, medium) {
            return Ok(features);
        }
        // A device error of other work must not be attributed to this item.
        if let Some(fault) = self.drop_lookahead(sequences) {
            encoded.fault = Some(fault);
        }
        self.encoder_cache.encode(owner, medium)
    }

    /// Returns the bytes of the cached features.
    pub(in crate::engine) fn feature_bytes(&self) -> u64 {
        self.encoder_cache.bytes()
    }

    /// Evicts features that exceed their share of `free` bytes. Returns the bytes that remain free.
    pub(in crate::engine) fn shrink_features(&mut self, free: u64) -> u64 {
        self.encoder_cache.shrink_to_fit(free);
        free.saturating_sub(self.encoder_cache.bytes())
    }
}
