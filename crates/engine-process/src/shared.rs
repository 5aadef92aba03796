//! The state that the supervisor and all callers of an engine share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mlx_core::{Error, Result};

use crate::connection::frame;
use crate::message::{Reply, ToChild};
use crate::sequence::Sequence as Record;
use crate::state::{Call, Notice, Phase, State};

/// The state that the supervisor and all callers share.
pub(crate) struct Front {
    state: Mutex<State>,
    /// The last number of a call, a sequence or a request.
    last: AtomicU64,
    notices: Sender<Notice>,
}

impl Front {
    pub(crate) fn new(notices: Sender<Notice>) -> Self {
        Self { state: Mutex::default(), last: AtomicU64::new(0), notices }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.notices.send(notice).ok();
    }

    /// Returns a new number of a call, a sequence or a request.
    pub(crate) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a call and waits for the answer, if need be of a later child.
    pub(crate) fn call(&self, call: u64, message: &ToChild) -> Result<Reply> {
        let frames = frame(message).map_err(|error| Error::Internal(error.to_string()))?;
        self.call_with(call, frames, Vec::new())
    }

    /// Like `call`, for a frame that submits `sequences`.
    pub(crate) fn call_with(
        &self,
        call: u64,
        frames: Vec<u8>,
        sequences: Vec<(u64, Record)>,
    ) -> Result<Reply> {
        let (sender, reply) = channel();
        let ids = sequences.iter().map(|it| it.0).collect();
        let wakes = {
            let mut state = self.state();
            match &state.phase {
                Phase::Ended(why) => return Err(Error::EngineStopped(why.clone())),
                Phase::Away(why) => return Err(Error::Distributed(why.clone())),
                Phase::Starting | Phase::Running(_) | Phase::Restarting(_) => {}
            }
            let wakes = state.begin_work();
            state.sequences.extend(sequences);
            state.calls.insert(call, Call { frames, reply: sender, submits: ids, is_sent: false, deaths: 0 });
            state.send(call);
            wakes
        };
        if wakes {
            self.notify(Notice::Work);
        }
        reply.recv().map_err(|_| Error::EngineStopped("its process has ended".into()))?
    }
}
