//! SIGHUP, the signal of a terminal that closes. Invariant: it holds unsafe code, as mlx_sys.rs and macos.rs do.
#![expect(unsafe_code, reason = "no library asks for a signal's disposition in a safe way")]

use std::mem::MaybeUninit;
use std::ptr;

/// Whether this process ignores SIGHUP, as one that nohup started does.
pub fn ignores_hangup() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call changes nothing; it writes the current one to a place that is ours.
    let status = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has filled it, and zeros, too, are a valid action.
    status == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
