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
const LONGEST_ANSWER: usize = 4096;

/// The modes of the terminal before echo was turned off.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A guard that turns off echo until it is dropped.
pub(crate) struct Quiet(());

impl Quiet {
    /// Turns off echo. Keys for signals keep working. Does nothing without a terminal.
    pub(crate) fn begin() -> Self {
        if let Ok(before) = tcgetattr(stdin()) {
            let mut quiet = before.clone();
            // In canonical mode the kernel limits the length of a line and treats Ctrl-D as its end.
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

/// Restores the terminal, also on exits that run no destructors.
pub(crate) fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // The terminal may be gone.
        tcsetattr(stdin(), OptionalActions::Now, &before).ok();
    }
}

/// Sends a query and reads the terminal's reply until `is_whole` returns true. Returns nothing after a second of silence, or if typed keys
/// are waiting.
pub(crate) fn answer_of_terminal(
    question: &str,
    is_whole: impl Fn(&str) -> bool,
) -> Result<Option<String>, Failure> {
    let _quiet = Quiet::begin();
    let Ok(mut modes) = tcgetattr(stdin()) else { return Ok(None) };
    // A read returns available bytes, or nothing after ten tenths of a second.
    modes.special_codes[SpecialCodeIndex::VMIN] = 0;
    modes.special_codes[SpecialCodeIndex::VTIME] = 10;
    let is_set = tcsetattr(stdin(), OptionalActions::Now, &modes).is_ok();
    if !is_set || ioctl_fionread(stdin()).map_or(true, |waiting| waiting > 0) {
        return Ok(None);
    }
    terminal::show_styled(question)?;
    let (mut answer, mut bytes) = (String::new(), [0; 256]);
    while !is_whole(&answer) {
        let count = read(stdin(), &mut bytes).unwrap_or(0);
        if count == 0 || answer.len() > LONGEST_ANSWER {
            return Ok(None);
        }
        answer.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    Ok(Some(answer))
}

/// Discards unread keys: text typed before a question is not its answer.
pub(crate) fn forget_typed() {
    tcflush(stdin(), QueueSelector::IFlush).ok();
}
