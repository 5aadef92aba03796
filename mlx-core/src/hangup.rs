//! The signals that ask a process to end, such as SIGHUP, that of a closed terminal. Invariant: like mlx_sys.rs and macos.rs, this file may contain unsafe code.
#![expect(unsafe_code, reason = "no library asks for a signal's disposition in a safe way")]

use std::mem::MaybeUninit;
use std::ptr;

/// Returns true if this process ignores SIGHUP, for example because nohup started it.
pub fn ignores_hangup() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call changes nothing. It writes the current action to our variable.
    let status = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has filled it, and zeros are a valid action, too.
    status == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Has this process ignore SIGHUP, SIGINT and SIGTERM from now on, and SIGTTOU, with which a terminal may stop background processes that
/// write to it.
pub fn ignore_requests_to_end() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGTTOU] {
        // SAFETY: to ignore a signal installs no handler, so none of our code runs in one.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
