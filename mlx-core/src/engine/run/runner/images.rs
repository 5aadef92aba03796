//! The pictures of a step: the vision tower encodes them before their rows are computed, and their features are cached.

use chat_format::Pixels;

use super::{Failure, Runner};
use crate::engine::run::executor::Fault;
use crate::engine::schedule::plan::StepPlan;
use crate::engine::sequence::{Sequence, Sequences};
use crate::error::Result;
use crate::model::Hidden;

/// The failures of encoding.
#[derive(Default)]
pub(in crate::engine) struct Encoded {
    /// Sequences with a picture that could not be encoded.
    pub(in crate::engine) failed: Vec<Failure>,
    /// An error of the step that began early.
    pub(in crate::engine) fault: Option<Fault>,
}

impl Runner {
    /// Assigns numbers to the pictures of a new sequence, which identify them in comparisons.
    pub(in crate::engine) fn number_pictures(&mut self, sequence: &mut Sequence) {
        sequence.number_pictures(|image| self.encoder_cache.number(image));
    }

    /// Encodes the pictures that a step needs, one after the other. If a picture fails, its sequence leaves the plan.
    pub(in crate::engine) fn encode_images(
        &mut self,
        plan: &mut StepPlan,
        sequences: &mut Sequences,
    ) -> Encoded {
        let mut encoded = Encoded::default();
        for chunk in plan.prefill.iter().flat_map(|prefill| &prefill.chunks) {
            let sequence = sequences.get(chunk.id);
            let owner = sequence.limits.owner;
            for (picture, image) in sequence.pictures_to_see(&chunk.range) {
                match self.features(owner, &image, sequences, &mut encoded) {
                    Ok(features) => {
                        sequences.get_mut(chunk.id).running().features.insert(picture, features);
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

    /// Returns the features of a picture, from its owner's cache or newly computed.
    fn features(
        &mut self,
        owner: Option<u64>,
        image: &Pixels,
        sequences: &mut Sequences,
        encoded: &mut Encoded,
    ) -> Result<Hidden> {
        if let Some(features) = self.encoder_cache.get(owner, image) {
            return Ok(features);
        }
        // A device error of other work must not be attributed to this picture.
        if let Some(fault) = self.drop_lookahead(sequences) {
            encoded.fault = Some(fault);
        }
        self.encoder_cache.encode(owner, image)
    }

    /// Returns the bytes of the cached features.
    pub(in crate::engine) fn feature_bytes(&self) -> u64 {
        self.encoder_cache.bytes()
    }

    /// Evicts features of pictures that exceed their share of `free` bytes. Returns the bytes that remain free.
    pub(in crate::engine) fn shrink_features(&mut self, free: u64) -> u64 {
        self.encoder_cache.shrink_to_fit(free);
        free.saturating_sub(self.encoder_cache.bytes())
    }
}
