//! The memory budget of request bodies and of the values parsed from them. Requests are charged as their bytes arrive.

use std::sync::Arc;

use axum::http::StatusCode;
use mlx_options::ByteSize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// Bytes per request that are not counted, so that short requests are always read.
const UNCOUNTED_BYTES: u64 = 64 << 10;

/// Estimated bytes of a parsed JSON value, besides its text. Includes spare capacity of growing lists and objects, and the heap's overhead.
const BYTES_PER_VALUE: u64 = 160;
/// Estimated bytes of a parsed object or list.
const BYTES_PER_CONTAINER: u64 = 320;

/// Bytes per semaphore permit.
const PERMIT_BYTES: u64 = 1 << 10;

/// The budget of all request bodies.
#[derive(Debug, Clone)]
pub(crate) struct BodyMemory {
    budget: ByteSize,
    permits: Arc<Semaphore>,
}

impl BodyMemory {
    /// Creates an unused budget.
    pub(crate) fn new(budget: ByteSize) -> Self {
        let units = usize::try_from(budget.0 / PERMIT_BYTES).unwrap_or(usize::MAX);
        Self { budget, permits: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))) }
    }

    /// Returns an empty charge for a new request.
    pub(crate) fn charge(&self) -> Charge {
        Charge { memory: self.clone(), permit: None }
    }
}

/// The memory charged to one request. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: BodyMemory,
    permit: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// Sets the charge of the request to `bytes`. Returns an error if the budget does not allow it.
    pub(crate) fn set(&mut self, bytes: u64) -> Result<(), ApiError> {
        let BodyMemory { budget, permits } = &self.memory;
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES);
        if counted > budget.0 {
            let message =
                format!("reading the request takes {}; --body-memory allows {budget}", ByteSize(bytes));
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        let units = usize::try_from(counted / PERMIT_BYTES).unwrap_or(usize::MAX);
        let permit = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if let Some(extra) = permit.checked_sub(units) {
            drop(self.permit.as_mut().and_then(|permit| permit.split(extra)));
            return Ok(());
        }
        let missing = u32::try_from(units - permit).unwrap_or(u32::MAX);
        let more = Arc::clone(permits).try_acquire_many_owned(missing).map_err(|_| {
            ApiError::busy(format!("other requests use the {budget} that --body-memory allows"), 1)
        })?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}

/// Returns an upper estimate of the memory of a JSON text after parsing, in bytes.
pub(crate) fn parsed_bytes(json: &[u8]) -> u64 {
    let (mut values, mut containers) = (0, 0);
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b':' => values += 1,
            b'{' | b'[' => containers += 1,
            _ => {}
        }
    }
    json.len() as u64 + values * BYTES_PER_VALUE + containers * BYTES_PER_CONTAINER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let memory = BodyMemory::new(ByteSize(10 * UNCOUNTED_BYTES));
        let used = || 10 * UNCOUNTED_BYTES - PERMIT_BYTES * memory.permits.available_permits() as u64;
        let (mut one, mut other) = (memory.charge(), memory.charge());
        assert_eq!((one.set(UNCOUNTED_BYTES), used()), (Ok(()), 0), "short bodies are free");
        assert_eq!((one.set(8 * UNCOUNTED_BYTES), used()), (Ok(()), 7 * UNCOUNTED_BYTES));
        let full = other.set(5 * UNCOUNTED_BYTES).expect_err("it is full");
        assert_eq!((full.status().as_u16(), used()), (429, 7 * UNCOUNTED_BYTES));
        assert!(full.response().error.message.contains("--body-memory"));
        assert_eq!(
            (one.set(2 * UNCOUNTED_BYTES), other.set(5 * UNCOUNTED_BYTES), used()),
            (Ok(()), Ok(()), 5 * UNCOUNTED_BYTES)
        );
        assert_eq!(other.set(12 * UNCOUNTED_BYTES).expect_err("never fits").status().as_u16(), 413);
        drop(one);
        assert_eq!(used(), 4 * UNCOUNTED_BYTES);
        drop(other);
        assert_eq!(used(), 0);
    }

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let text = format!("{{\"a\": \"{}\"}}", r#"[1, {\"b\": 2}] "#.repeat(100));
        assert_eq!(parsed_bytes(text.as_bytes()), text.len() as u64 + BYTES_PER_CONTAINER + BYTES_PER_VALUE);
        assert!(parsed_bytes("[1,1,1,1]".as_bytes()) > 4 * 80);
    }
}
