//! The keyboard while the program works: typed keys are not echoed into the output and stay queued for the next prompt.

use std::io::stdin;
use std::sync::{Mutex, PoisonError};

use rustix::io::{ioctl_fionread, read};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::exit_code::Failure;
use crate::terminal;

/// The byte limit of a terminal's reply; real replies have tens of bytes.
const MAX_REPLY_LEN: usize = 4096;

/// The modes of the terminal before echo was turned off.
static SAVED_MODES: Mutex<Option<Termios>> = Mutex::new(None);

/// A guard that turns off echo until it is dropped.
pub(crate) struct EchoGuard(());

impl EchoGuard {
    /// Turns off echo. Keys for signals keep working. Does nothing without a terminal.
    pub(crate) fn begin() -> Self {
        if let Ok(before) = tcgetattr(stdin()) {
            let mut modes = before.clone();
            // In canonical mode the kernel limits the length of a line and treats Ctrl-D as its end.
            modes.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            if tcsetattr(stdin(), OptionalActions::Now, &modes).is_ok() {
                *SAVED_MODES.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
            }
        }
        Self(())
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, also on exits that run no destructors.
pub(crate) fn restore() {
    if let Some(before) = SAVED_MODES.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // The terminal may be gone.
        tcsetattr(stdin(), OptionalActions::Now, &before).ok();
    }
}

/// Sends a query and reads the terminal's reply until `is_complete` returns true. Returns nothing after a second of silence, or if typed keys
/// are waiting.
pub(crate) fn query_terminal(
    query: &str,
    is_complete: impl Fn(&str) -> bool,
) -> Result<Option<String>, Failure> {
    let _echo_guard = EchoGuard::begin();
    let Ok(mut modes) = tcgetattr(stdin()) else { return Ok(None) };
    // A read returns available bytes, or nothing after ten tenths of a second.
    modes.special_codes[SpecialCodeIndex::VMIN] = 0;
    modes.special_codes[SpecialCodeIndex::VTIME] = 10;
    let is_set = tcsetattr(stdin(), OptionalActions::Now, &modes).is_ok();
    if !is_set || ioctl_fionread(stdin()).map_or(true, |waiting| waiting > 0) {
        return Ok(None);
    }
    terminal::show_styled(query)?;
    let (mut reply, mut bytes) = (String::new(), [0; 256]);
    while !is_complete(&reply) {
        let count = read(stdin(), &mut bytes).unwrap_or(0);
        if count == 0 || reply.len() > MAX_REPLY_LEN {
            return Ok(None);
        }
        reply.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    Ok(Some(reply))
}

/// Discards unread keys: text typed before a question is not its answer.
pub(crate) fn discard_typed() {
    tcflush(stdin(), QueueSelector::IFlush).ok();
}
