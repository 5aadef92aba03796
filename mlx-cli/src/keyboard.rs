//! The keyboard while the program works: keys are not shown in what it writes, and are kept for the next prompt.

use std::io::stdin;
use std::sync::{Mutex, PoisonError};

use rustix::io::{ioctl_fionread, read};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::exit_code::Failure;
use crate::terminal;

/// Bytes; terminals answer in tens.
const LONGEST_ANSWER: usize = 4096;

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

/// What the terminal answers to the control sequences of `question`, until it `is_whole`; nothing after a second of silence, or where keys
/// wait that were typed before.
pub(crate) fn answer_of_terminal(
    question: &str,
    is_whole: impl Fn(&str) -> bool,
) -> Result<Option<String>, Failure> {
    let _quiet = Quiet::begin();
    let Ok(mut modes) = tcgetattr(stdin()) else { return Ok(None) };
    // A read gives what is there, or nothing after ten tenths of a second.
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

/// Forgets keys that nothing has read yet: what was typed before a question is no answer to it.
pub(crate) fn forget_typed() {
    tcflush(stdin(), QueueSelector::IFlush).ok();
}
