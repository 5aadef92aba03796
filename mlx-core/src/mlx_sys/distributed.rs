//! Groups of processes that compute one graph, each its part, and exchange arrays within it.

use std::ffi::CStr;

use ::mlx_sys::{
    mlx_distributed_all_gather, mlx_distributed_all_sum, mlx_distributed_group, mlx_distributed_group_free,
    mlx_distributed_group_new, mlx_distributed_group_size, mlx_distributed_init,
    mlx_distributed_is_available, mlx_distributed_recv, mlx_distributed_send,
};
use mlx_rs::{Array, Dtype, Stream};

use super::results::{catch_errors, new_array};
use crate::error::{Error, Result};

/// Returns true if MLX has this backend, and its library is installed.
pub(crate) fn has_group_backend(backend: &CStr) -> bool {
    catch_errors();
    // SAFETY: the name ends with a zero.
    unsafe { mlx_distributed_is_available(backend.as_ptr()) }
}

/// A group of processes. All of them must run the same operations in the same order. An operation waits for the others without a time limit.
pub(crate) struct Group {
    group: mlx_distributed_group,
    /// True if the device exchanges arrays, and not the CPU.
    on_device: bool,
}

// SAFETY: it is a shared pointer to a group that MLX itself uses from its threads.
unsafe impl Send for Group {}
// SAFETY: as above; the calls only add nodes to a graph.
unsafe impl Sync for Group {}

impl Group {
    /// Joins the group that the environment of this process describes. Blocks until the neighbors have joined. Only the first call connects.
    pub(crate) fn join(backend: &CStr, on_device: bool) -> Result<Self> {
        catch_errors();
        // SAFETY: the call only creates an empty handle, which the value here frees.
        let mut joined = Self { group: unsafe { mlx_distributed_group_new() }, on_device };
        // SAFETY: the handle is ours, and the name ends with a zero.
        let status = unsafe { mlx_distributed_init(&raw mut joined.group, true, backend.as_ptr()) };
        let message = || format!("cannot join the other machines over {}", backend.to_string_lossy());
        if status == 0 { Ok(joined) } else { Err(Error::Mlx(message())) }
    }

    /// The number of processes.
    pub(crate) fn size(&self) -> usize {
        // SAFETY: the handle is that of a group.
        unsafe { mlx_distributed_group_size(self.group) as usize }
    }

    /// Returns the sum of the arrays of all processes. With more than two, the order of additions depends on the shape.
    pub(crate) fn sum(&self, part: &Array) -> Result<Array> {
        let stream = self.stream();
        // SAFETY: every handle belongs to a value that outlives the call.
        let call =
            |result| unsafe { mlx_distributed_all_sum(result, part.as_ptr(), self.group, stream.as_ptr()) };
        new_array(call, || failure("sum", part.shape()))
    }

    /// Returns the arrays of all processes, joined along the first axis in the order of ranks.
    pub(crate) fn gather(&self, part: &Array) -> Result<Array> {
        let stream = self.stream();
        // SAFETY: every handle belongs to a value that outlives the call.
        let call = |result| unsafe {
            mlx_distributed_all_gather(result, part.as_ptr(), self.group, stream.as_ptr())
        };
        new_array(call, || failure("gather", part.shape()))
    }

    /// Sends an array to a process. Returns the array; only its evaluation sends it.
    pub(crate) fn send(&self, array: &Array, to: usize) -> Result<Array> {
        let stream = self.stream();
        // SAFETY: every handle belongs to a value that outlives the call.
        let call = |result| unsafe {
            mlx_distributed_send(result, array.as_ptr(), to as i32, self.group, stream.as_ptr())
        };
        new_array(call, || failure("send", array.shape()))
    }

    /// Returns an array that a process sends.
    pub(crate) fn receive(&self, shape: &[i32], dtype: Dtype, from: usize) -> Result<Array> {
        let stream = self.stream();
        let (sizes, count) = (shape.as_ptr(), shape.len());
        // SAFETY: every handle belongs to a value that outlives the call, and `sizes` has `count` numbers.
        let call = |result| unsafe {
            mlx_distributed_recv(result, sizes, count, dtype.into(), from as i32, self.group, stream.as_ptr())
        };
        new_array(call, || failure("receive", shape))
    }

    fn stream(&self) -> Stream {
        if self.on_device { Stream::thread_local_or_default() } else { Stream::cpu() }
    }
}

fn failure(operation: &str, shape: &[i32]) -> String {
    format!("cannot {operation} arrays of shape {shape:?} between machines")
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the handle has no other owner and is not used after this.
        unsafe { mlx_distributed_group_free(self.group) };
    }
}
