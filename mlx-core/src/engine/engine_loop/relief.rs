//! What the loop does while the system is short of memory: what is kept for later requests goes, and what runs goes on.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use super::attend::LOOK;
use super::{EngineLoop, Message};
use crate::array;

impl EngineLoop {
    /// Waits for a message, asks for the memory pressure meanwhile, and looks after machines that hold layers.
    pub(super) fn idle(&mut self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        let is_divided = self.device.is_divided();
        while self.pressure.is_on || is_divided {
            let wait = if is_divided { LOOK } else { self.pressure.interval() };
            match messages.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {
                    self.attend(true);
                    self.relieve();
                }
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Ok(message) => return Ok(message),
            }
        }
        messages.recv().map_err(TryRecvError::from)
    }

    /// Drops all prefixes and features of pictures in memory, those checkpoints of running sequences that only later prompts need, and freed
    /// buffers, if the system is short of memory. Nothing may be pending on the device but what ran ahead.
    pub(super) fn relieve(&mut self) {
        let Some(pressure) = self.pressure.rise(Instant::now()) else { return };
        let kept = self.prefixes.bytes(&self.sequences) + self.encoder_cache.bytes();
        if kept > 0 {
            self.drop_ahead();
            self.prefixes.make_room(&mut self.sequences, 0);
            self.encoder_cache.make_room(0);
            tracing::info!(
                ?pressure,
                bytes = kept,
                "kept prefixes and features of pictures were dropped: the system is short of memory"
            );
        }
        if let Err(error) = array::drop_freed_memory() {
            tracing::warn!(%error, "freed memory cannot be given back");
        }
        self.record_memory();
    }
}
