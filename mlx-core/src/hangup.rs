//! SIGHUP, the signal of a closed terminal. Invariant: it holds unsafe code, like mlx_sys.rs and macos.rs.
#![expect(unsafe_code, reason = "no library asks for a signal's disposition in a safe way")]

use std::mem::MaybeUninit;
use std::ptr;

/// Returns true if this process ignores SIGHUP, as after a start by nohup.
pub fn ignores_hangup() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call changes nothing; it writes the current one to our variable.
    let status = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has filled it; zeros are a valid action, too.
    status == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
