//! What macOS alone says of this process and its memory. Invariant: beside mlx_sys.rs the only file of the project that holds unsafe code.

#[cfg(target_os = "macos")]
pub(crate) use self::calls::{footprint, pressure_level};

/// The bytes of this process as the system counts them; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn footprint() -> Option<u64> {
    None
}

/// The system's level of memory pressure, 1 to 4; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn pressure_level() -> Option<i32> {
    None
}

#[cfg(target_os = "macos")]
#[expect(unsafe_code, reason = "libc has no safe interface")]
mod calls {
    use std::mem;
    use std::ptr;

    /// `phys_footprint`: what Activity Monitor shows, which counts Metal's memory.
    pub(crate) fn footprint() -> Option<u64> {
        // SAFETY: it holds integers alone, for which zeros are valid.
        let mut usage: libc::rusage_info_v4 = unsafe { mem::zeroed() };
        let process = i32::try_from(std::process::id()).ok()?;
        // SAFETY: the place is ours and as large as this version of the structure.
        let status = unsafe { libc::proc_pid_rusage(process, libc::RUSAGE_INFO_V4, (&raw mut usage).cast()) };
        (status == 0).then_some(usage.ri_phys_footprint)
    }

    /// `kern.memorystatus_vm_pressure_level`
    pub(crate) fn pressure_level() -> Option<i32> {
        let mut level = 0_i32;
        let mut size = mem::size_of_val(&level);
        let name = c"kern.memorystatus_vm_pressure_level".as_ptr();
        // SAFETY: the name ends with a zero, and the place is ours and of the size that is given.
        let status =
            unsafe { libc::sysctlbyname(name, (&raw mut level).cast(), &raw mut size, ptr::null_mut(), 0) };
        (status == 0).then_some(level)
    }
}
