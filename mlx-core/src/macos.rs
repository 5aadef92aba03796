//! Values of the process and its memory that only macOS reports. Invariant: like mlx_sys.rs and hangup.rs, this file may contain unsafe code.

#[cfg(target_os = "macos")]
pub(crate) use self::calls::{footprint, library_path, memory, pressure_level};

/// The memory of this machine in bytes; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn memory() -> Option<u64> {
    None
}

/// The memory use of this process in bytes, as the system counts it; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn footprint() -> Option<u64> {
    None
}

/// The system's level of memory pressure, 1 to 4; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn pressure_level() -> Option<i32> {
    None
}

/// The path of the loaded library with this file name; `None` on other systems.
#[cfg(not(target_os = "macos"))]
pub(crate) fn library_path(_name: &str) -> Option<std::path::PathBuf> {
    None
}

#[cfg(target_os = "macos")]
#[expect(unsafe_code, reason = "libc has no safe interface")]
mod calls {
    use std::ffi::CStr;
    use std::mem;
    use std::path::PathBuf;
    use std::ptr;

    /// `phys_footprint`, Activity Monitor's value, which includes Metal's memory.
    pub(crate) fn footprint() -> Option<u64> {
        // SAFETY: the structure contains only integers, so zeros are valid.
        let mut usage: libc::rusage_info_v4 = unsafe { mem::zeroed() };
        let process = i32::try_from(std::process::id()).ok()?;
        // SAFETY: the buffer is ours, and has the size of this version of the structure.
        let status = unsafe { libc::proc_pid_rusage(process, libc::RUSAGE_INFO_V4, (&raw mut usage).cast()) };
        (status == 0).then_some(usage.ri_phys_footprint)
    }

    /// `hw.memsize`
    pub(crate) fn memory() -> Option<u64> {
        let mut bytes = 0_u64;
        // SAFETY: macOS stores a number of 64 bits under this name.
        unsafe { read(c"hw.memsize", &mut bytes) }.then_some(bytes)
    }

    /// `kern.memorystatus_vm_pressure_level`
    pub(crate) fn pressure_level() -> Option<i32> {
        let mut level = 0_i32;
        // SAFETY: macOS stores a number of 32 bits under this name.
        unsafe { read(c"kern.memorystatus_vm_pressure_level", &mut level) }.then_some(level)
    }

    /// The path of the loaded library with this file name.
    pub(crate) fn library_path(name: &str) -> Option<PathBuf> {
        // SAFETY: the function takes no pointers.
        let count = unsafe { libc::_dyld_image_count() };
        (0..count).find_map(|index| {
            // SAFETY: the function takes no pointers. It returns null if the index is too large.
            let path = unsafe { libc::_dyld_get_image_name(index) };
            if path.is_null() {
                return None;
            }
            // SAFETY: the string ends with a zero, and is copied before the library can be unloaded: MLX is never unloaded.
            let path = PathBuf::from(unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned());
            path.file_name().is_some_and(|file| file == name).then_some(path)
        })
    }

    /// Reads a system value. Returns false if there is no value of this size.
    ///
    /// # Safety
    /// Any bytes that the system stores under the name must be a valid value of this type.
    unsafe fn read<T>(name: &CStr, value: &mut T) -> bool {
        let mut size = mem::size_of::<T>();
        // SAFETY: the name ends with a zero. The buffer is ours and has the given size.
        let status = unsafe {
            libc::sysctlbyname(name.as_ptr(), ptr::from_mut(value).cast(), &raw mut size, ptr::null_mut(), 0)
        };
        status == 0 && size == mem::size_of::<T>()
    }
}
