//! Times as protocols write them.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// The time now, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A time in seconds since 1970, as RFC 3339 writes it.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or_default().to_string()
}
