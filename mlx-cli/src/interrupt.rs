//! Ctrl-C: ends the answer that is being written, or the program when there is none.

use std::sync::{Arc, Mutex, PoisonError};

use mlx_core::engine::Canceller;

use crate::terminal;

/// The exit code of a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// From now on Ctrl-C says this line and ends the program.
pub(crate) fn explain(line: String) {
    let on_signal = move || {
        terminal::note(&line);
        std::process::exit(INTERRUPTED);
    };
    if let Err(error) = ctrlc::set_handler(on_signal) {
        tracing::warn!(%error, "ctrl-c ends the program without a word");
    }
}

/// Knows which answer Ctrl-C is to end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<Canceller>>>);

impl Interrupt {
    /// Takes over Ctrl-C for the whole program.
    pub(crate) fn install() -> Self {
        let interrupt = Self::default();
        let watched = interrupt.clone();
        let on_signal = move || match watched.current().take() {
            Some(canceller) => canceller.cancel(),
            // No answer is running, or this is the second time.
            None => std::process::exit(INTERRUPTED),
        };
        if let Err(error) = ctrlc::set_handler(on_signal) {
            tracing::warn!(%error, "ctrl-c ends the program instead of the answer");
        }
        interrupt
    }

    /// From now on Ctrl-C ends this answer.
    pub(crate) fn watch(&self, canceller: Canceller) {
        *self.current() = Some(canceller);
    }

    /// The answer has ended.
    pub(crate) fn release(&self) {
        *self.current() = None;
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Canceller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
