//! One iteration of the loop: a message, a step, or a wait for either. A panic ends neither the loop nor unrelated requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};

use super::health::CHECK_INTERVAL;
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
                self.record_outage();
                // The client may have disconnected, which is not an error.
                reply.send(level).ok();
            }
            Err(TryRecvError::Empty) if self.check_workers(false) => self.step(),
            Err(TryRecvError::Empty) => {}
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

    /// Waits for a message. Meanwhile it polls the memory pressure and the machines that hold layers.
    fn idle(&mut self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        let is_divided = self.runner.device().is_distributed();
        while self.pressure.is_on || is_divided {
            let wait = if is_divided { CHECK_INTERVAL } else { self.pressure.interval() };
            match messages.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {
                    self.check_workers(true);
                    self.free_memory();
                }
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Ok(message) => return Ok(message),
            }
        }
        messages.recv().map_err(TryRecvError::from)
    }
}
