//! Ctrl-C: stops the running generation or command, or ends the program if none is running.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{keyboard, terminal};

/// The exit code of a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Makes Ctrl-C print this line and exit.
pub(crate) fn exit_with_message(line: String) {
    let on_signal = move || {
        terminal::note(&line);
        std::process::exit(INTERRUPTED);
    };
    if let Err(error) = ctrlc::set_handler(on_signal) {
        tracing::warn!(%error, "Ctrl-C will end the program without a message");
    }
}

/// The action of Ctrl-C.
type StopAction = Box<dyn FnOnce() + Send>;

/// A handle to the action of Ctrl-C.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<StopAction>>>);

impl Interrupt {
    /// Installs the program's Ctrl-C handler.
    pub(crate) fn install() -> Self {
        let interrupt = Self::default();
        let watched = interrupt.clone();
        let on_signal = move || {
            let stop = watched.current().take();
            // Nothing is running, or this is the second Ctrl-C.
            let Some(stop) = stop else {
                keyboard::restore();
                std::process::exit(INTERRUPTED);
            };
            stop();
        };
        if let Err(error) = ctrlc::set_handler(on_signal) {
            tracing::warn!(%error, "Ctrl-C will end the program instead of the answer");
        }
        interrupt
    }

    /// Makes Ctrl-C call `stop`.
    pub(crate) fn watch(&self, stop: impl FnOnce() + Send + 'static) {
        *self.current() = Some(Box::new(stop));
    }

    /// Clears the action, because the work has ended.
    pub(crate) fn release(&self) {
        *self.current() = None;
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<StopAction>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
