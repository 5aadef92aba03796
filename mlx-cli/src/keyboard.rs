//! The keyboard while the program works: keys are not shown in what it writes, and are kept for the next prompt.

use std::io::stdin;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr};

/// The modes of the terminal before it was made quiet.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A quiet keyboard, until this is dropped.
pub(crate) struct Quiet(());

impl Quiet {
    /// Makes the keyboard quiet. Signals keep their keys. Without a terminal nothing changes.
    pub(crate) fn begin() -> Self {
        if let Ok(before) = tcgetattr(stdin()) {
            let mut quiet = before.clone();
            // Whole lines are collected by the kernel up to a length only, and with Ctrl-D as an end; keys are not.
            quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            if tcsetattr(stdin(), OptionalActions::Now, &quiet).is_ok() {
                *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
            }
        }
        Self(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was; also for ways out of the program that drop nothing.
pub(crate) fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // A terminal that is gone needs nothing.
        tcsetattr(stdin(), OptionalActions::Now, &before).ok();
    }
}

/// Forgets keys that nothing has read yet: what was typed before a question is no answer to it.
pub(crate) fn forget_typed() {
    tcflush(stdin(), QueueSelector::IFlush).ok();
}
