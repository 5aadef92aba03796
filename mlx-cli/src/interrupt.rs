//! Ctrl-C: cancels the running generation, or ends the program if there is none.

use std::sync::{Arc, Mutex, PoisonError};

use mlx_core::engine::Canceller;

use crate::terminal;

/// The exit code of a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Makes Ctrl-C print this line and end the program.
pub(crate) fn explain(line: String) {
    let on_signal = move || {
        terminal::note(&line);
        std::process::exit(INTERRUPTED);
    };
    if let Err(error) = ctrlc::set_handler(on_signal) {
        tracing::warn!(%error, "Ctrl-C will end the program without a message");
    }
}

/// The generation that Ctrl-C cancels.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<Canceller>>>);

impl Interrupt {
    /// Installs the Ctrl-C handler of the program.
    pub(crate) fn install() -> Self {
        let interrupt = Self::default();
        let watched = interrupt.clone();
        let on_signal = move || match watched.current().take() {
            Some(canceller) => canceller.cancel(),
            // No generation is running, or this is the second Ctrl-C.
            None => std::process::exit(INTERRUPTED),
        };
        if let Err(error) = ctrlc::set_handler(on_signal) {
            tracing::warn!(%error, "Ctrl-C will end the program instead of the generation");
        }
        interrupt
    }

    /// Makes Ctrl-C cancel this generation.
    pub(crate) fn watch(&self, canceller: Canceller) {
        *self.current() = Some(canceller);
    }

    /// The generation has ended.
    pub(crate) fn release(&self) {
        *self.current() = None;
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Canceller>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
