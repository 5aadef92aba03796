//! Ctrl-C: stops what is running, a generation or a command, or ends the program if there is nothing.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{keyboard, terminal};

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

/// What Ctrl-C does.
type Stop = Box<dyn FnOnce() + Send>;

/// What Ctrl-C stops.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<Stop>>>);

impl Interrupt {
    /// Installs the Ctrl-C handler of the program.
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

    /// Makes Ctrl-C stop something by this.
    pub(crate) fn watch(&self, stop: impl FnOnce() + Send + 'static) {
        *self.current() = Some(Box::new(stop));
    }

    /// It has ended.
    pub(crate) fn release(&self) {
        *self.current() = None;
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
