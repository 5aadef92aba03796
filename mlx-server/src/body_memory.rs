//! The memory that bodies of requests and what is read from them take, all together. Charged as the bytes arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use mlx_options::ByteSize;

use crate::error::ApiError;

/// Bytes of each request that are not counted, so that short requests are read whatever others hold.
const FREE: u64 = 64 << 10;

/// Bytes that a value of JSON takes once it is parsed, besides its text: as the entry of a list or an object that grows, with the heap's own.
const PER_VALUE: u64 = 160;
/// An object or a list takes more.
const PER_CONTAINER: u64 = 320;

/// The budget of all bodies.
#[derive(Debug, Clone)]
pub(crate) struct BodyMemory {
    budget: u64,
    used: Arc<AtomicU64>,
}

impl BodyMemory {
    /// A budget that nothing is taken from yet.
    pub(crate) fn new(budget: ByteSize) -> Self {
        Self { budget: budget.0, used: Arc::default() }
    }

    /// The charge of a request that holds nothing yet.
    pub(crate) fn charge(&self) -> Charge {
        Charge { memory: self.clone(), counted: 0 }
    }
}

/// What one request holds; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: BodyMemory,
    counted: u64,
}

impl Charge {
    /// Changes what the request holds to `bytes`. An error if there is no room for it.
    pub(crate) fn set(&mut self, bytes: u64) -> Result<(), ApiError> {
        let BodyMemory { budget, used } = &self.memory;
        let counted = bytes.saturating_sub(FREE);
        if counted > *budget {
            let message = format!(
                "reading the request takes {}; --body-memory allows {}",
                ByteSize(bytes),
                ByteSize(*budget)
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        let change = |all: u64| {
            Some(all - self.counted + counted).filter(|all| all <= budget || counted <= self.counted)
        };
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).map_err(|_| {
            let message = format!("other requests hold what --body-memory allows, {}", ByteSize(*budget));
            ApiError::busy(message, 1)
        })?;
        self.counted = counted;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// Bytes that a JSON text takes once it is parsed, estimated from above.
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
    json.len() as u64 + values * PER_VALUE + containers * PER_CONTAINER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let memory = BodyMemory::new(ByteSize(10 * FREE));
        let used = || memory.used.load(Ordering::Relaxed);
        let (mut one, mut other) = (memory.charge(), memory.charge());
        assert_eq!((one.set(FREE), used()), (Ok(()), 0), "short bodies are free");
        assert_eq!((one.set(8 * FREE), used()), (Ok(()), 7 * FREE));
        let full = other.set(5 * FREE).expect_err("it is full");
        assert_eq!((full.status().as_u16(), used()), (429, 7 * FREE));
        assert!(full.response().error.message.contains("--body-memory"));
        assert_eq!((one.set(2 * FREE), other.set(5 * FREE), used()), (Ok(()), Ok(()), 5 * FREE));
        assert_eq!(other.set(12 * FREE).expect_err("never fits").status().as_u16(), 413);
        drop(one);
        assert_eq!(used(), 4 * FREE);
        drop(other);
        assert_eq!(used(), 0);
    }

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let text = format!("{{\"a\": \"{}\"}}", r#"[1, {\"b\": 2}] "#.repeat(100));
        assert_eq!(parsed_bytes(text.as_bytes()), text.len() as u64 + PER_CONTAINER + PER_VALUE);
        assert!(parsed_bytes("[1,1,1,1]".as_bytes()) > 4 * 80);
    }
}
