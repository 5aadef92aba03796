//! The part of the loop that encodes pictures, before the rows behind them are computed.

use chat_format::Pixels;

use super::EngineLoop;
use crate::engine::event::FinishReason;
use crate::engine::schedule::plan::StepPlan;
use crate::error::Result;
use crate::model::Hidden;

impl EngineLoop {
    /// Lets the tower see the pictures that a step needs, one after the other; a picture that fails ends its sequence and no other.
    pub(super) fn encode_images(&mut self, plan: &mut StepPlan) {
        let mut failed = Vec::new();
        for chunk in plan.prefill.iter().flat_map(|prefill| &prefill.chunks) {
            let sequence = self.sequences.get(chunk.id);
            let owner = sequence.limits.owner;
            for (picture, image) in sequence.pictures_to_see(&chunk.range) {
                match self.features(owner, &image) {
                    Ok(features) => {
                        self.sequences.get_mut(chunk.id).running().features.insert(picture, features);
                    }
                    Err(error) => {
                        failed.push((chunk.id, error.to_string()));
                        break;
                    }
                }
            }
        }
        for (id, message) in failed {
            for prefill in &mut plan.prefill {
                prefill.chunks.retain(|chunk| chunk.id != id);
            }
            plan.prefill.retain(|prefill| !prefill.chunks.is_empty());
            self.end(id, FinishReason::Error(message));
        }
    }

    /// Returns the features of a picture, from its owner's cache or computed now.
    fn features(&mut self, owner: Option<u64>, image: &Pixels) -> Result<Hidden> {
        if let Some(features) = self.encoder_cache.kept(owner, image) {
            return Ok(features);
        }
        // A device error must not be taken for one of other work.
        self.drop_ahead();
        self.encoder_cache.encode(owner, image)
    }

    /// Bytes that prefixes may take: neither reserved, nor taken by features of pictures, for which less important ones give way.
    pub(super) fn free_for_prefixes(&mut self) -> u64 {
        let free = self.scheduler.ledger().free();
        self.encoder_cache.make_room(free);
        free.saturating_sub(self.encoder_cache.bytes())
    }
}
