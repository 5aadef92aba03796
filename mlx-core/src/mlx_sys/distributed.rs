//! Groups of processes that compute one graph, each its part, and exchange arrays within it.

use std::ffi::CStr;

use ::mlx_sys::{
    mlx_distributed_all_gather, mlx_distributed_all_sum, mlx_distributed_group, mlx_distributed_group_free,
    mlx_distributed_group_new, mlx_distributed_group_size, mlx_distributed_init,
};
use mlx_rs::{Array, Stream};

use super::results::{catch_errors, new_array};
use crate::error::{Error, Result};

/// A group of processes. All of them must run the same operations in the same order. An operation waits for the others without a time limit.
pub(crate) struct Group(mlx_distributed_group);

// SAFETY: it is a shared pointer to a group that MLX itself uses from its threads.
unsafe impl Send for Group {}
// SAFETY: as above; the calls only add nodes to a graph.
unsafe impl Sync for Group {}

impl Group {
    /// Joins the group that the environment of this process describes. Blocks until the neighbors have joined. Only the first call connects.
    pub(crate) fn join(backend: &CStr) -> Result<Self> {
        catch_errors();
        // SAFETY: the call only creates an empty handle, which the value here frees.
        let mut group = Self(unsafe { mlx_distributed_group_new() });
        // SAFETY: the handle is ours, and the name ends with a zero.
        let status = unsafe { mlx_distributed_init(&raw mut group.0, true, backend.as_ptr()) };
        let message = || format!("cannot join the other machines over {}", backend.to_string_lossy());
        if status == 0 { Ok(group) } else { Err(Error::Mlx(message())) }
    }

    /// The number of processes.
    pub(crate) fn size(&self) -> usize {
        // SAFETY: the handle is that of a group.
        unsafe { mlx_distributed_group_size(self.0) as usize }
    }

    /// Returns the sum of the arrays of all processes. With more than two, the order of additions depends on the shape.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        self.exchange(part, mlx_distributed_all_sum)
    }

    /// Returns the arrays of all processes, joined along the first axis in the order of ranks.
    pub(crate) fn gather(&self, part: &Array) -> Result<Array> {
        self.exchange(part, mlx_distributed_all_gather)
    }

    fn exchange(&self, part: &Array, operation: Operation) -> Result<Array> {
        // The network is the CPU's work, whatever the device.
        let stream = Stream::cpu();
        // SAFETY: every handle belongs to a value that outlives the call.
        let call = |result| unsafe { operation(result, part.as_ptr(), self.0, stream.as_ptr()) };
        new_array(call, || format!("an exchange of {:?} between machines failed", part.shape()))
    }
}

/// A function of mlx-c that exchanges arrays.
type Operation = unsafe extern "C" fn(
    *mut ::mlx_sys::mlx_array,
    ::mlx_sys::mlx_array,
    mlx_distributed_group,
    ::mlx_sys::mlx_stream,
) -> i32;

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner and is not used after this.
        unsafe { mlx_distributed_group_free(self.0) };
    }
}
