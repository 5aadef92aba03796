//! One iteration of the loop: a message, a step, or a wait for either. A panic ends neither the loop nor unrelated requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};

use super::{EngineLoop, Message, SHORT_WAIT};

impl EngineLoop {
    /// Runs until every handle is dropped or too many consecutive iterations have panicked.
    pub(in crate::engine) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(messages))) {
                Ok(true) => {}
                Ok(false) => break,
                Err(panic) if self.survive(&*panic) => {}
                Err(_) => return,
            }
        }
        self.drop_lookahead();
        self.prefixes.save_all();
    }

    /// Handles one message or runs one step. Returns false if every handle was dropped.
    fn turn(&mut self, messages: &Receiver<Message>) -> bool {
        match self.next_message(messages) {
            Ok(Message::Submit(sequences)) => self.queue(sequences),
            Ok(Message::CheckExactness(adapter, reply)) => {
                self.progress.work(None, &self.gauges);
                let level = self.runner.device().check_exactness(adapter);
                // The client may have disconnected, which is not an error.
                reply.send(level).ok();
            }
            Err(TryRecvError::Empty) => self.step(),
            Err(TryRecvError::Disconnected) => return false,
        }
        true
    }

    /// Returns the next message. An idle engine saves prefixes while it waits.
    fn next_message(&mut self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        if !self.sequences.is_empty() {
            return messages.try_recv();
        }
        self.progress.idle(&self.gauges);
        self.awake.release();
        while self.prefixes.save_next() {
            match messages.recv_timeout(SHORT_WAIT) {
                // A disk that does not respond keeps prefixes pending for a long time.
                Err(RecvTimeoutError::Timeout) => self.free_memory(),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Ok(message) => return Ok(message),
            }
        }
        self.idle(messages)
    }

    /// Waits for a message. Meanwhile it polls the memory pressure.
    fn idle(&mut self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        while self.pressure.is_on {
            match messages.recv_timeout(self.pressure.interval()) {
                Err(RecvTimeoutError::Timeout) => self.free_memory(),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Ok(message) => return Ok(message),
            }
        }
        messages.recv().map_err(TryRecvError::from)
    }
}
